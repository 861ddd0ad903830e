// Merkle maps: search trees of blocks. A node is used only if it fits the place that its parent gives it: level, number of
// entries, first and last key, order, and a cut where the keys demand one and nowhere else.

import { Malformed, Reader, compare, equal } from "./bytes.ts";
import { type Block, BodyReader, KIND, type Kind, type Reference } from "./block.ts";
import { DOMAIN, digest } from "./digest.ts";

export const LEVEL_MAX = 15;
const KEY_BYTES_MAX = 1024;
const VALUE_BYTES_MAX = 1024;
const VALUE_REFERENCES_MAX = 16;
const ENTRIES_MIN = 16;
const ENTRIES_MAX = 128;
const BOUNDARY_ONE_IN = 32;

/** Where verified blocks come from. */
export interface Source {
  key: Uint8Array;
  fetch(reference: Reference, kind: Kind): Promise<Block>;
  /** These will be wanted soon. */
  prefetch(references: Reference[]): Promise<void>;
}

/** A map: its top node, or `null` for the empty one. */
export type MapRoot = { reference: Reference; level: number; entries: bigint } | null;

export interface Value {
  bytes: Uint8Array;
  references: Reference[];
}

export interface Entry {
  key: Uint8Array;
  value: Value;
}

interface Child {
  key: Uint8Array;
  reference: Reference;
  entries: bigint;
}

/** What a parent says about a node. */
interface Place {
  reference: Reference;
  level: number;
  entries: bigint;
  lower: Uint8Array | null;
  upper: Uint8Array | null;
  last: boolean;
}

type Node = { place: Place } & ({ level: 0; slots: Entry[] } | { level: number; slots: Child[] });

export function readRoot(reader: BodyReader): MapRoot {
  if (!reader.flag("the map flag")) return null;
  const level = reader.u8();
  const entries = reader.u64();
  if (level > LEVEL_MAX || entries === 0n) throw new Malformed("its map is impossible");
  return { level, entries, reference: reader.reference() };
}

function topOf(root: MapRoot): Place | null {
  return root && { ...root, lower: null, upper: null, last: true };
}

const kindOf = (level: number): Kind => (level === 0 ? KIND.mapLeaf : KIND.mapInner);

function endsNode(digestKey: Uint8Array, level: number, count: number, key: Uint8Array): boolean {
  if (count >= ENTRIES_MAX) return true;
  if (count < ENTRIES_MIN) return false;
  const found = digest(digestKey, DOMAIN.boundary, Uint8Array.of(level), key);
  return new Reader(found).u32() % BOUNDARY_ONE_IN === 0;
}

function readValue(reader: BodyReader): Value {
  const bytes = reader.bytes16();
  const count = reader.u8();
  if (bytes.length > VALUE_BYTES_MAX || count > VALUE_REFERENCES_MAX) throw new Malformed("a value is too large");
  return { bytes, references: Array.from({ length: count }, () => reader.reference()) };
}

/** What a block says as a node, wherever it stands. */
interface Parsed {
  level: number;
  entries: Entry[];
  children: Child[];
  /** Entries in and below it. */
  sum: bigint;
  /** Whether its last key ends a node. */
  ended: boolean;
}

/** Looking for boundaries costs more than all the rest of a look-up, so it is done once for a block in memory. */
const known = new WeakMap<Block, Parsed>();

function parsed(digestKey: Uint8Array, block: Block, level: number): Parsed {
  const found = known.get(block);
  if (found?.level === level) return found;
  const reader = new BodyReader(block.body, block.references);
  reader.format();
  if (level > 0 && reader.u8() !== level) throw new Malformed("a map node has another level than its parent says");
  const count = reader.u32();
  if (count < 1 || count > ENTRIES_MAX) throw new Malformed(`a map node has ${count} entries`);
  const node: Parsed = { level, entries: [], children: [], sum: 0n, ended: false };
  let previous: Uint8Array | null = null;
  for (let index = 1; index <= count; index++) {
    if (node.ended) throw new Malformed("a map node goes on after a key that ends nodes");
    const key = reader.bytes16();
    if (key.length < 1 || key.length > KEY_BYTES_MAX) throw new Malformed("a key has an impossible length");
    if (previous && compare(previous, key) >= 0) throw new Malformed("keys of a map are out of order");
    previous = key;
    node.ended = endsNode(digestKey, level, index, key);
    if (level === 0) {
      node.entries.push({ key, value: readValue(reader) });
      node.sum += 1n;
    } else {
      const below = reader.u64();
      if (below === 0n) throw new Malformed("a map node counts a child without entries");
      node.children.push({ key, entries: below, reference: reader.reference() });
      node.sum += below;
    }
  }
  reader.finish();
  known.set(block, node);
  return node;
}

/** Reads an authentic block as the node at `place`. */
function parse(digestKey: Uint8Array, block: Block, place: Place): Node {
  const { level } = place;
  const { entries, children, sum, ended } = parsed(digestKey, block, level);
  const slots = level === 0 ? entries : children;
  const [first, last] = [slots[0]!.key, slots.at(-1)!.key];
  if (place.lower && compare(place.lower, first) >= 0) throw new Malformed("keys of a map are misplaced");
  if (place.upper === null && level > 0 && slots.length < 2) throw new Malformed("the top of a map has one child");
  if (place.upper && !equal(last, place.upper)) throw new Malformed("a map node ends with another key than its parent says");
  if (sum !== place.entries) throw new Malformed(`a map node has ${sum} entries, and its parent says ${place.entries}`);
  if (!place.last && !ended) throw new Malformed("a map node ends before its keys say so");
  return level === 0 ? { place, level, slots: entries } : { place, level, slots: children };
}

async function open(source: Source, place: Place): Promise<Node> {
  return parse(source.key, await source.fetch(place.reference, kindOf(place.level)), place);
}

function childAt(node: Node, index: number): Place {
  const child = node.slots[index] as Child;
  return {
    reference: child.reference,
    level: node.level - 1,
    entries: child.entries,
    lower: index > 0 ? node.slots[index - 1]!.key : node.place.lower,
    upper: child.key,
    last: node.place.last && index + 1 === node.slots.length,
  };
}

/** The first slot for which `within` no longer holds. */
function partition(node: Node, within: (key: Uint8Array) => boolean): number {
  let [low, high] = [0, node.slots.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (within(node.slots[middle]!.key)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The value of `key`. `null` is proven: no map with this root has it. */
export async function get(source: Source, root: MapRoot, key: Uint8Array): Promise<Value | null> {
  let place = topOf(root);
  while (place) {
    const node = await open(source, place);
    const index = partition(node, (known) => compare(known, key) < 0);
    if (index === node.slots.length) return null;
    if (node.level === 0) {
      const slot = node.slots[index] as Entry;
      return equal(slot.key, key) ? slot.value : null;
    }
    place = childAt(node, index);
  }
  return null;
}

/** At most `limit` entries after `after` (from the first for `null`), in order. */
export async function range(source: Source, root: MapRoot, after: Uint8Array | null, limit: number): Promise<Entry[]> {
  const found: Entry[] = [];
  const top = topOf(root);
  if (top) await rangeBelow(source, top, after, limit, found);
  return found;
}

async function rangeBelow(source: Source, place: Place, after: Uint8Array | null, limit: number, found: Entry[]): Promise<void> {
  const node = await open(source, place);
  const first = after ? partition(node, (key) => compare(key, after) <= 0) : 0;
  if (node.level === 0) {
    found.push(...(node.slots as Entry[]).slice(first, first + limit - found.length));
    return;
  }
  const children = (node.slots as Child[]).slice(first);
  let wanted = BigInt(limit - found.length);
  const soon = children.filter((child, index) => {
    const needed = wanted > 0n;
    // The first may be entered in its middle, so it does not count.
    if (index > 0) wanted -= child.entries;
    return needed;
  });
  await source.prefetch(soon.slice(0, 64).map((child) => child.reference));
  for (let index = first; index < node.slots.length && found.length < limit; index++) {
    await rangeBelow(source, childAt(node, index), after, limit, found);
  }
}

/** The last entry whose key is at most `upper`, or any if that is `null`. */
export async function floor(source: Source, root: MapRoot, upper: Uint8Array): Promise<Entry | null> {
  const top = topOf(root);
  return top && floorBelow(source, top, upper);
}

async function floorBelow(source: Source, place: Place, upper: Uint8Array | null): Promise<Entry | null> {
  const node = await open(source, place);
  const within = upper ? partition(node, (key) => compare(key, upper) <= 0) : node.slots.length;
  if (node.level === 0) return within > 0 ? (node.slots[within - 1] as Entry) : null;
  // The child after the last one that lies wholly within the bound may begin within it.
  if (within < node.slots.length) {
    const found = await floorBelow(source, childAt(node, within), upper);
    if (found) return found;
  }
  return within > 0 ? floorBelow(source, childAt(node, within - 1), null) : null;
}

export type Difference = { key: Uint8Array; before: Value | null; after: Value | null };

type Head = { place: Place } | { entry: Entry };

/** Every key whose value differs, in order. Subtrees that both share are not fetched. */
export async function* diff(source: Source, a: MapRoot, b: MapRoot): AsyncGenerator<Difference> {
  const stack = (root: MapRoot): Head[] => (root ? [{ place: topOf(root)! }] : []);
  const [left, right] = [stack(a), stack(b)];
  const unfold = async (heads: Head[]) => {
    const node = await open(source, (heads.pop() as { place: Place }).place);
    for (let index = node.slots.length - 1; index >= 0; index--) {
      heads.push(node.level === 0 ? { entry: node.slots[index] as Entry } : { place: childAt(node, index) });
    }
  };
  for (;;) {
    const [x, y] = [left.at(-1), right.at(-1)];
    if (!x && !y) return;
    if (x && y && "place" in x && "place" in y) {
      const [p, q] = [x.place, y.place];
      if (p.level === q.level && equal(p.reference.address, q.reference.address)) {
        left.pop();
        right.pop();
        continue;
      }
      if (p.level >= q.level) await unfold(left);
      if (q.level >= p.level) await unfold(right);
    } else if (x && "place" in x) {
      await unfold(left);
    } else if (y && "place" in y) {
      await unfold(right);
    } else {
      const [before, after] = [x?.entry, y?.entry];
      const order = !before ? 1 : !after ? -1 : compare(before.key, after.key);
      if (order <= 0) left.pop();
      if (order >= 0) right.pop();
      const key = (order <= 0 ? before! : after!).key;
      if (order === 0 && sameValue(before!.value, after!.value)) continue;
      yield { key, before: order <= 0 ? before!.value : null, after: order >= 0 ? after!.value : null };
    }
  }
}

function sameValue(a: Value, b: Value): boolean {
  return (
    equal(a.bytes, b.bytes) &&
    a.references.length === b.references.length &&
    a.references.every((one, i) => equal(one.address, b.references[i]!.address) && one.length === b.references[i]!.length)
  );
}
