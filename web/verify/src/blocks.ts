// The blocks of a release, from its mirrors. Every block is checked against the reference it is wanted for before it is used;
// what was fetched beside it is kept as it came, and checked when it is wanted.

import { Malformed, equal, hex } from "./bytes.ts";
import { type Block, type Kind, type Reference, openBlock } from "./block.ts";
import { type Place, RemoteIndex } from "./index_file.ts";
import type { Source } from "./map.ts";
import { type Mirror, MirrorError, type Mirrors } from "./mirrors.ts";
import { firstFrame, frames } from "./pack.ts";
import type { Location } from "./record.ts";

const GAP_BYTES = 64 << 10;
const RANGE_BYTES_MAX = 4 << 20;
/** A small block is fetched with what follows it in its pack, which is what lies beside it in the tree. */
const WINDOW_BYTES = 128 << 10;
const FRAMES_BYTES_MAX = 32 << 20;
const BLOCKS_BYTES_MAX = 32 << 20;
const FETCHES_MAX = 4;

/** Remembers what was used last, up to a number of bytes. */
class Cache<T> {
  #items = new Map<string, { item: T; bytes: number }>();
  #bytes = 0;

  constructor(readonly bytesMax: number) {}

  get(key: string): T | null {
    const found = this.#items.get(key);
    if (!found) return null;
    this.#items.delete(key);
    this.#items.set(key, found);
    return found.item;
  }

  put(key: string, item: T, bytes: number): void {
    this.delete(key);
    this.#items.set(key, { item, bytes });
    this.#bytes += bytes;
    for (const oldest of this.#items.keys()) {
      if (this.#bytes <= this.bytesMax) break;
      this.delete(oldest);
    }
  }

  delete(key: string): void {
    this.#bytes -= this.#items.get(key)?.bytes ?? 0;
    this.#items.delete(key);
  }
}

/** A frame that nobody has checked. */
interface Kept {
  stored: Uint8Array;
  mirror: Mirror;
  file: string;
}

type Wanted = { place: Place; address: Uint8Array };

/** An index, and the mirrors that name it: it is their word, and nobody's signature. */
export interface NamedIndex extends Location {
  by: Mirror[];
}

export class Blocks {
  verifiedBlocks = 0;
  verifiedBytes = 0;
  #frames = new Cache<Kept>(FRAMES_BYTES_MAX);
  #blocks = new Cache<{ block: Block; kind: Kind }>(BLOCKS_BYTES_MAX);
  #underWay = new Map<string, Promise<void>>();
  #indexes: RemoteIndex[] = [];

  constructor(readonly key: Uint8Array, readonly mirrors: Mirrors, readonly locations: NamedIndex[]) {}

  /** The same blocks for who reads `path`, so that what is false can be told with its name. */
  for(path: string): Source {
    return {
      key: this.key,
      fetch: (reference, kind) => this.#fetch(reference, kind, path),
      prefetch: (references) => this.#prefetch(references, path),
    };
  }

  async #fetch(reference: Reference, kind: Kind, path: string): Promise<Block> {
    const name = hex(reference.address);
    const known = this.#blocks.get(name);
    if (known && known.kind === kind && known.block.body.length === reference.length) return known.block;
    for (let tries = 0; ; tries++) {
      const kept = this.#frames.get(name);
      if (!kept) {
        await this.#bring([reference.address], path);
        if (this.#frames.get(name)) continue;
        throw new MirrorError("Missing", `no mirror has block ${name.slice(0, 16)}`);
      }
      try {
        const block = openBlock(this.key, kept.stored, reference, kind);
        this.verifiedBlocks++;
        this.verifiedBytes += block.body.length;
        this.#frames.delete(name);
        this.#blocks.put(name, { block, kind }, block.body.length + block.references.length * 32 + 200);
        return block;
      } catch (error) {
        if (!(error instanceof Malformed)) throw error;
        this.#frames.delete(name);
        this.mirrors.drop(kept.mirror, path, `${kept.file}: block ${name.slice(0, 16)}: ${error.message}`);
        if (tries >= this.mirrors.all.length || this.mirrors.all.every((mirror) => mirror.dropped)) {
          throw new MirrorError("Wrong", `${kept.mirror.url}: ${kept.file}: block ${name.slice(0, 16)}: ${error.message}`);
        }
      }
    }
  }

  async #prefetch(references: Reference[], path: string): Promise<void> {
    const missing = references
      .map((reference) => reference.address)
      .filter((address) => !this.#blocks.get(hex(address)) && !this.#frames.get(hex(address)));
    // What could not be had is told when it is wanted.
    if (missing.length > 1) await this.#bring(missing, path).catch(() => {});
  }

  /** Brings frames of these blocks near, one request for those that lie together. */
  async #bring(addresses: Uint8Array[], path: string): Promise<void> {
    let left = addresses;
    let failed: unknown = null;
    for (let number = 0; left.length > 0; number++) {
      const index = await this.#index(number);
      if (!index) break;
      const wanted: Wanted[] = [];
      for (const address of left) {
        const place = await index.find(address);
        if (place) wanted.push({ place, address });
      }
      const groups = grouped(wanted);
      const fetchers = Array.from({ length: FETCHES_MAX }, async () => {
        for (let group = groups.shift(); group; group = groups.shift()) {
          await this.#range(index, group, addresses.length === 1, path).catch((error) => (failed = error));
        }
      });
      await Promise.all(fetchers);
      left = left.filter((address) => !this.#frames.get(hex(address)));
    }
    if (left.length > 0 && failed) throw failed;
  }

  /** The indexes that mirrors name, the likeliest first. One that cannot be had is passed over, and tried again next time. */
  async #index(number: number): Promise<RemoteIndex | null> {
    let failed: unknown = null;
    for (const location of this.locations) {
      if (this.#indexes.length > number) break;
      const name = hex(location.digest);
      if (this.#indexes.some((index) => index.name.endsWith(name))) continue;
      try {
        this.#indexes.push(await RemoteIndex.open(this.mirrors, location));
      } catch (error) {
        failed = error;
      }
    }
    if (failed && this.#indexes.length === 0) throw failed;
    return this.#indexes[number] ?? null;
  }

  async #range(index: RemoteIndex, group: Wanted[], alone: boolean, path: string): Promise<void> {
    const { pack, packBytes, offset: start } = group[0]!.place;
    let end = Math.max(...group.map(({ place }) => place.offset + place.bytes));
    if (alone && end - start < WINDOW_BYTES) end = Math.min(start + WINDOW_BYTES, packBytes);
    const name = `${pack}:${start}-${end}`;
    const known = this.#underWay.get(name);
    if (known) return known;
    const fetching = this.mirrors.get(pack, { start, end }, end - start, path, (bytes, mirror) => {
      for (const { place, address } of group) {
        const found = firstFrame(bytes.subarray(place.offset - start));
        if (!found || !equal(found.frame.address, address)) {
          const why = `block ${hex(address).slice(0, 16)} is not where the index says`;
          // Who names an index and gives something else lies. Of two mirrors, nobody knows which.
          if (index.by.includes(mirror)) throw new Malformed(why);
          throw new MirrorError("Wrong", `${mirror.url}: ${pack}: ${why}`);
        }
      }
      for (const frame of frames(bytes)) {
        this.#frames.put(hex(frame.address), { stored: frame.stored, mirror, file: pack }, frame.stored.length + 200);
      }
    });
    this.#underWay.set(name, fetching);
    try {
      await fetching;
    } finally {
      this.#underWay.delete(name);
    }
  }
}

/** Blocks of one pack with little between them go together. */
function grouped(wanted: Wanted[]): Wanted[][] {
  const order = (a: Wanted, b: Wanted) =>
    a.place.pack < b.place.pack ? -1 : a.place.pack > b.place.pack ? 1 : a.place.offset - b.place.offset;
  const groups: Wanted[][] = [];
  for (const one of [...wanted].sort(order)) {
    const group = groups.at(-1);
    const [first, last] = [group?.[0]?.place, group?.at(-1)?.place];
    const near =
      first && last && one.place.pack === first.pack &&
      one.place.offset <= last.offset + last.bytes + GAP_BYTES &&
      one.place.offset + one.place.bytes - first.offset <= RANGE_BYTES_MAX;
    if (near) group!.push(one);
    else groups.push([one]);
  }
  return groups;
}
