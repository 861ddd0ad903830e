// Names and paths, which are bytes of any kind, and how people see them.

import { equal, utf8 } from "./bytes.ts";

/** A path: names, which are bytes. As text, names have `/` between them. */
export type Path = string | Uint8Array[];

/** Names of a path. */
export function names(path: Path): Uint8Array[] {
  const parts = typeof path === "string" ? path.split("/").map(utf8) : path;
  return parts.filter((name) => name.length > 0 && !equal(name, utf8(".")));
}

/** A path for people: what is not UTF-8, and control characters, are shown by their numbers. */
export function shown(path: Path): string {
  return names(path).map(shownName).join("/");
}

/** A name for people. Whatever could change how other text is shown is shown by its number. */
export function shownName(name: Uint8Array): string {
  const escape = (bytes: Uint8Array) => Array.from(bytes, (byte) => "\\x" + byte.toString(16).padStart(2, "0")).join("");
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(name);
  } catch {
    const one = (byte: number) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : escape(Uint8Array.of(byte)));
    return Array.from(name, one).join("");
  }
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (one) => escape(utf8(one)));
}

/** Text of a publisher for people. */
export function plain(text: string): string {
  return shownName(utf8(text.replaceAll("\n", " ")));
}
