// Making elements. Text is text: nothing of a release ever becomes markup.

type Child = Node | string;

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: { [name: string]: string } = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function byId<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

export function button(text: string, onClick: () => void): HTMLButtonElement {
  const made = element("button", { type: "button" }, text);
  made.addEventListener("click", onClick);
  return made;
}

export type Mood = "good" | "warn" | "bad" | "plain";

export function banner(mood: Mood, head: string, ...lines: Child[]): HTMLElement {
  const role = mood === "bad" ? { role: "alert" } : {};
  const made = element("div", { class: `banner ${mood}`, ...role }, element("p", {}, head));
  if (lines.length > 0) made.append(element("ul", {}, ...lines.map((line) => element("li", {}, line))));
  return made;
}

/** A size for people. */
export function size(bytes: bigint | number): string {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let value = Number(bytes);
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return unit === 0 ? `${value} ${value === 1 ? "byte" : "bytes"}` : `${value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}

/** Lets the browser draw and listen now and then, while something takes long. */
export function rests(): () => Promise<void> {
  let last = performance.now();
  return async () => {
    if (performance.now() - last < 40) return;
    await new Promise((resolve) => setTimeout(resolve));
    last = performance.now();
  };
}
