// What two trees do not share. Subtrees with the same digest are skipped unread.

import { Malformed, concat, equal, utf8 } from "./bytes.ts";
import type { Reference } from "./block.ts";
import { type Content, type Inode, inodeOf, loadInode, readEntry } from "./inode.ts";
import { type Source, type Value, diff } from "./map.ts";

/** Directories within each other that are compared. */
const DEPTH_MAX = 256;

/** One name that is different. */
export interface Change {
  /** Names from the top. */
  path: Uint8Array[];
  what: "added" | "removed" | "changed" | "attributes";
  kind: string;
}

/** What was added, removed and changed from one tree to another, in order of path. */
export async function* changes(source: Source, before: Reference, after: Reference): AsyncGenerator<Change> {
  const [a, b] = [await loadInode(source, before), await loadInode(source, after)];
  yield* below(source, [], a, b);
}

async function* below(source: Source, path: Uint8Array[], a: Inode, b: Inode): AsyncGenerator<Change> {
  if (a.content.is !== "directory" || b.content.is !== "directory") return;
  if (path.length > DEPTH_MAX) throw new Malformed("it is deeper than any path that is followed");
  for await (const { key, before, after } of diff(source, a.content.map, b.content.map)) {
    const here = [...path, key];
    const load = async (value: Value | null) => value && inodeOf(source, readEntry(value));
    const [x, y] = [await load(before), await load(after)];
    if (!x || !y) {
      yield { path: here, what: x ? "removed" : "added", kind: (x ?? y)!.kind };
    } else if (x.kind === "directory" && y.kind === "directory") {
      yield* below(source, here, x, y);
    } else {
      const same = x.kind === y.kind && x.size === y.size && sameContent(x.content, y.content);
      yield { path: here, what: same ? "attributes" : "changed", kind: y.kind };
    }
  }
}

function sameContent(a: Content, b: Content): boolean {
  return equal(key(a), key(b));
}

/** Bytes that are the same for the same content. */
function key(content: Content): Uint8Array {
  switch (content.is) {
    case "none":
      return utf8("none");
    case "inline":
      return concat(utf8("inline "), content.bytes);
    case "target":
      return concat(utf8("target "), content.target);
    case "extents":
      return concat(
        ...content.extents.flatMap(({ offset, skip, length, reference }) => [utf8(`${offset} ${skip} ${length} `), reference.address]),
      );
    case "extent map":
    case "directory":
      return concat(utf8("map "), content.map?.reference.address ?? new Uint8Array());
  }
}
