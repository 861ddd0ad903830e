// What takes a while: comparing with the release before, and checking every file.

import { shown } from "../src/names.ts";
import { PathError, type Release } from "../src/release.ts";
import { banner, element, rests, size } from "./dom.ts";

const CHANGES_MAX = 1000;
const FALSE_MAX = 100;

type Link = (path: Uint8Array[], text: string) => HTMLElement;

const MARKS = { added: "+", removed: "−", changed: "~", attributes: "·" };
const WORDS = { added: "added", removed: "removed", changed: "changed", attributes: "attributes changed" };

export async function changesView(
  place: HTMLElement, release: Release, link: Link, failed: (error: unknown) => void,
): Promise<void> {
  const list = element("ul", { class: "changes" });
  const note = element("p", { class: "soft", role: "status" }, "Comparing...");
  place.replaceChildren(note, list);
  const rest = rests();
  let count = 0;
  try {
    for await (const { path, what, kind } of release.changes()) {
      await rest();
      const text = shown(path) + (kind === "directory" ? "/" : "");
      const mark = element("span", { class: "mark", "aria-hidden": "true" }, MARKS[what]);
      const name = what === "removed" ? element("span", {}, text) : link(path, text);
      list.append(element("li", { class: what }, mark, name, element("span", { class: "soft" }, ` ${WORDS[what]}`)));
      if (++count >= CHANGES_MAX) break;
    }
    note.textContent =
      count === 0 ? "Nothing: the two trees are the same."
      : count >= CHANGES_MAX ? `The first ${count} changes.`
      : `${count} ${count === 1 ? "change" : "changes"}.`;
  } catch (error) {
    failed(error);
    const mood = error instanceof PathError && error.isFalse ? "bad" : "plain";
    note.replaceWith(banner(mood, error instanceof Error ? error.message : String(error)));
  }
}

export async function checkView(place: HTMLElement, release: Release, failed: (error: unknown) => void): Promise<void> {
  const note = element("p", { role: "status" }, "Checking...");
  const list = element("ul", { class: "changes" });
  place.replaceChildren(note, list);
  let [files, bytes, wrong, closed, told] = [0, 0, 0, 0, Date.now()];
  const rest = rests();
  const one = (error: unknown) => {
    wrong++;
    failed(error);
    list.append(element("li", { class: "removed" }, error instanceof Error ? error.message : String(error)));
  };
  try {
    for await (const { path, entry } of release.walk()) {
      await rest();
      if (entry.opaque) closed++;
      if (entry.kind !== "file") continue;
      try {
        for await (const part of release.readFile(path)) {
          bytes += part.length;
          if (Date.now() - told > 200) {
            told = Date.now();
            note.textContent = `Checking: ${files} files, ${size(bytes)} so far...`;
          }
          await rest();
        }
        files++;
      } catch (error) {
        one(error);
        if (wrong >= FALSE_MAX) break;
      }
    }
  } catch (error) {
    one(error);
  }
  const all = `${files} ${files === 1 ? "file" : "files"}, ${size(bytes)}`;
  const closedText = closed === 1 ? "directory that does" : "directories that do";
  const but = closed === 0 ? [] : [`Without what is in ${closed} ${closedText} not show names.`];
  note.replaceWith(
    wrong === 0
      ? banner("good", `Every byte is what the publisher signed: ${all}.`, ...but)
      : banner("bad", `${wrong} ${wrong === 1 ? "file is" : "files are"} not to be had as the publisher signed them; ${all} are.`, ...but),
  );
}
