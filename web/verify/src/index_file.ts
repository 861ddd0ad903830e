// The index of a release: which block is in which pack, and where. A mirror names it and nobody signs it; a wrong one keeps
// blocks from being found, and nothing else.

import { Malformed, Reader, compare, equal, hex, utf8 } from "./bytes.ts";
import type { NamedIndex } from "./blocks.ts";
import { DOMAIN, WELL_KNOWN, digest } from "./digest.ts";
import { type Mirror, MirrorError, type Mirrors } from "./mirrors.ts";
import { FRAME_BYTES_MAX } from "./pack.ts";

const FIXED_BYTES = 20;
const PACK_NAME_BYTES = 40;
const ENTRY_BYTES = 28;
const PAGE_BYTES = 128 * ENTRY_BYTES;
const WHOLE_BYTES_MAX = 1 << 20;
/** At 8 bytes a page of 128, that is more than a hundred million blocks. */
const HEAD_BYTES_MAX = 8 << 20;
const PAGES_KEPT = 1024;

/** Where a block lies. */
export interface Place {
  pack: string;
  packBytes: number;
  offset: number;
  bytes: number;
}

interface Head {
  headBytes: number;
  bytes: number;
  packs: { digest: Uint8Array; bytes: number }[];
  fences: BigUint64Array;
}

/** Numbers of entries and packs, and what follows from them. */
function readSizes(fixed: Uint8Array, location: NamedIndex): { packs: number; pages: number; headBytes: number; bytes: number } {
  const reader = new Reader(fixed);
  if (!equal(reader.take(8), utf8("HFINDEX1"))) throw new Malformed("it is no index");
  const [entries, packs] = [reader.u64(), reader.u32()];
  if (entries > 1n << 32n || packs > 1 << 20) throw new Malformed("it is too large an index");
  const pages = Math.ceil(Number(entries) / 128);
  const headBytes = FIXED_BYTES + packs * PACK_NAME_BYTES + pages * 8;
  const bytes = headBytes + Number(entries) * ENTRY_BYTES;
  // That is for those to answer for who said so, and not for whoever gave the file.
  if (BigInt(bytes) !== location.bytes || headBytes > HEAD_BYTES_MAX) {
    throw new MirrorError("Wrong", `${location.by[0]?.url}: index/${hex(location.digest)} has another size than it says`);
  }
  return { packs, pages, headBytes, bytes };
}

function readHead(bytes: Uint8Array, location: NamedIndex): Head {
  const sizes = readSizes(bytes.subarray(0, FIXED_BYTES), location);
  const reader = new Reader(bytes.subarray(FIXED_BYTES));
  const packs = Array.from({ length: sizes.packs }, () => ({ digest: reader.digest().slice(), bytes: Number(reader.u64()) }));
  const fences = new BigUint64Array(sizes.pages).map(() => bigEndian(reader.take(8)));
  return { headBytes: sizes.headBytes, bytes: sizes.bytes, packs, fences };
}

function bigEndian(bytes: Uint8Array): bigint {
  return new DataView(bytes.buffer, bytes.byteOffset, 8).getBigUint64(0);
}

/** How many fences come before the first for which `within` does not hold. */
function partition(fences: BigUint64Array, within: (fence: bigint) => boolean): number {
  let [low, high] = [0, fences.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (within(fences[middle]!)) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class RemoteIndex {
  #pages = new Map<number, Uint8Array>();

  private constructor(
    readonly name: string,
    readonly by: Mirror[],
    readonly mirrors: Mirrors,
    readonly head: Head,
    readonly whole: Uint8Array | null,
  ) {}

  static async open(mirrors: Mirrors, location: NamedIndex): Promise<RemoteIndex> {
    const name = `index/${hex(location.digest)}`;
    if (location.bytes <= BigInt(WHOLE_BYTES_MAX)) {
      return mirrors.get(name, null, Number(location.bytes), null, (bytes) => {
        if (!equal(digest(WELL_KNOWN, DOMAIN.releaseFile, bytes), location.digest)) {
          throw new Malformed("its content is not what its name says");
        }
        const head = readHead(bytes, location);
        return new RemoteIndex(name, location.by, mirrors, head, bytes.subarray(head.headBytes));
      });
    }
    const fixed = { start: 0, end: FIXED_BYTES };
    const sizes = await mirrors.get(name, fixed, FIXED_BYTES, null, (bytes) => readSizes(bytes, location));
    const range = { start: 0, end: sizes.headBytes };
    const head = await mirrors.get(name, range, sizes.headBytes, null, (bytes) => readHead(bytes, location));
    return new RemoteIndex(name, location.by, mirrors, head, null);
  }

  /** Where a block lies, as far as this index knows. */
  async find(address: Uint8Array): Promise<Place | null> {
    const key = address.subarray(0, 16);
    if (this.whole) return this.#findIn(this.whole, key);
    const fence = bigEndian(key);
    const { fences, headBytes, bytes } = this.head;
    // Equal fences can begin several pages, and the key be in the one before the first of them.
    const first = Math.max(0, partition(fences, (known) => known < fence) - 1);
    const end = Math.min(partition(fences, (known) => known <= fence), first + 4);
    for (let page = first; page < end; page++) {
      const start = headBytes + page * PAGE_BYTES;
      const place = this.#findIn(await this.#page(page, start, Math.min(start + PAGE_BYTES, bytes)), key);
      if (place) return place;
    }
    return null;
  }

  async #page(page: number, start: number, end: number): Promise<Uint8Array> {
    const known = this.#pages.get(page);
    if (known) return known;
    const bytes = await this.mirrors.get(this.name, { start, end }, end - start, null, (bytes) => bytes);
    if (this.#pages.size >= PAGES_KEPT) this.#pages.delete(this.#pages.keys().next().value!);
    this.#pages.set(page, bytes);
    return bytes;
  }

  #findIn(entries: Uint8Array, key: Uint8Array): Place | null {
    let [low, high] = [0, Math.floor(entries.length / ENTRY_BYTES)];
    while (low < high) {
      const middle = (low + high) >> 1;
      const order = compare(entries.subarray(middle * ENTRY_BYTES, middle * ENTRY_BYTES + 16), key);
      if (order === 0) {
        const reader = new Reader(entries.subarray(middle * ENTRY_BYTES + 16, (middle + 1) * ENTRY_BYTES));
        const [number, offset, bytes] = [reader.u32(), reader.u32(), reader.u32()];
        const pack = this.head.packs[number];
        // A place that cannot be counts as none.
        if (!pack || offset + bytes > pack.bytes || bytes > FRAME_BYTES_MAX) return null;
        return { pack: `packs/${hex(pack.digest)}`, packBytes: pack.bytes, offset, bytes };
      }
      if (order < 0) low = middle + 1;
      else high = middle;
    }
    return null;
  }
}
