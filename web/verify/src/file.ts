// Bytes of a file, piece by piece, each verified before anybody sees it. What no extent has is a hole and reads as zeroes.

import { Malformed, Reader } from "./bytes.ts";
import { KIND } from "./block.ts";
import { type Extent, type Inode, checkExtent } from "./inode.ts";
import { type MapRoot, type Source, type Value, floor, range } from "./map.ts";

/** Most zeroes that are made at once. */
const HOLE_BYTES = 1 << 20;
/** Extents looked up at once. */
const BATCH = 32;

function bigEndian(offset: bigint): Uint8Array {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, offset);
  return bytes;
}

function extentOf(key: Uint8Array, value: Value): Extent {
  if (key.length !== 8) throw new Malformed("the key of an extent is no offset");
  const offset = new DataView(key.buffer, key.byteOffset, 8).getBigUint64(0);
  const reader = new Reader(value.bytes);
  const [skip, length] = [reader.u32(), reader.u32()];
  reader.finish();
  if (value.references.length !== 1) throw new Malformed("an extent has exactly one chunk");
  return checkExtent({ offset, skip, length, reference: value.references[0]! });
}

/** The extents that reach beyond `from`, in order. */
async function* extentsFrom(source: Source, map: MapRoot, from: bigint): AsyncGenerator<Extent> {
  let end = 0n;
  const next = (key: Uint8Array, value: Value) => {
    const extent = extentOf(key, value);
    if (extent.offset < end) throw new Malformed("extents of a file are out of order");
    end = extent.offset + BigInt(extent.length);
    return extent;
  };
  const first = await floor(source, map, bigEndian(from));
  if (first) yield next(first.key, first.value);
  let after = first?.key ?? null;
  for (;;) {
    const batch = await range(source, map, after, BATCH);
    const extents = batch.map(({ key, value }) => next(key, value));
    await source.prefetch(extents.map((extent) => extent.reference));
    yield* extents;
    if (batch.length < BATCH) return;
    after = batch.at(-1)!.key;
  }
}

async function* listed(source: Source, extents: Extent[]): AsyncGenerator<Extent> {
  await source.prefetch(extents.map((extent) => extent.reference));
  yield* extents;
}

/** The bytes from `start` to `end` (at most the size), in pieces. */
export async function* read(source: Source, inode: Inode, start = 0n, end = inode.size): AsyncGenerator<Uint8Array> {
  const { content, size } = inode;
  const until = end < size ? end : size;
  let at = start;
  const zeroes = function* (to: bigint) {
    while (at < to) {
      const length = to - at < BigInt(HOLE_BYTES) ? Number(to - at) : HOLE_BYTES;
      at += BigInt(length);
      yield new Uint8Array(length);
    }
  };
  if (content.is === "inline" && at < until) {
    const within = (place: bigint) => Number(min(place, BigInt(content.bytes.length)));
    const bytes = content.bytes.subarray(within(at), within(until));
    at += BigInt(bytes.length);
    if (bytes.length > 0) yield bytes;
  }
  if (content.is === "extents" || content.is === "extent map") {
    const extents = content.is === "extents" ? listed(source, content.extents) : extentsFrom(source, content.map, start);
    for await (const extent of extents) {
      if (at >= until || extent.offset >= until) break;
      const extentEnd = extent.offset + BigInt(extent.length);
      if (extentEnd <= at) continue;
      yield* zeroes(extent.offset);
      const chunk = await source.fetch(extent.reference, KIND.chunk);
      const from = extent.skip + Number(at - extent.offset);
      const to = extent.skip + Number(min(extentEnd, until) - extent.offset);
      at += BigInt(to - from);
      yield chunk.body.subarray(from, to);
    }
  }
  yield* zeroes(until);
}

function min(a: bigint, b: bigint): bigint {
  return a < b ? a : b;
}

