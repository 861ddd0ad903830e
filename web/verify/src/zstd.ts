// Expanding the body of a block: one zstd frame, from anybody. The frame must say how much it holds, and that must be what is
// expected; it is expanded into memory of exactly that size, so nothing is made that was not asked for. Whether it filled that, and
// with what, is for the block's digest to say.

import { decompress } from "fzstd";
import { Malformed, Reader } from "./bytes.ts";

/** Blocks of a frame. Each costs up to 128 KiB of work however short it is. */
const BLOCKS_MAX = 4096;

export function expand(frame: Uint8Array, length: number): Uint8Array {
  checkFrame(frame, length);
  const body = new Uint8Array(length);
  try {
    decompress(frame, body);
  } catch (error) {
    throw new Malformed(`it does not decompress: ${error instanceof Error ? error.message : error}`);
  }
  return body;
}

/** One frame of the length that is expected, with blocks to its end and nothing behind. */
function checkFrame(frame: Uint8Array, length: number): void {
  const reader = new Reader(frame);
  if (reader.u32() !== 0xfd2fb528) throw new Malformed("it is not compressed as it says");
  const flags = reader.u8();
  const single = (flags & 0x20) !== 0;
  if (flags & 0x08) throw new Malformed("its frame has a reserved bit");
  if ((flags & 0x03) !== 0) throw new Malformed("it needs a dictionary");
  if (!single) reader.u8();
  const width = flags >> 6;
  const stated =
    width === 0 ? (single ? reader.u8() : null)
    : width === 1 ? reader.u16() + 256
    : width === 2 ? reader.u32()
    : Number(reader.u64());
  if (stated !== length) throw new Malformed(`its frame says ${stated ?? "no"} bytes, not ${length}`);
  for (let blocks = 1, last = false; !last; blocks++) {
    if (blocks > BLOCKS_MAX) throw new Malformed("its frame has too many blocks");
    const header = reader.u8() | (reader.u8() << 8) | (reader.u8() << 16);
    last = (header & 1) !== 0;
    const kind = (header >> 1) & 3;
    if (kind === 3) throw new Malformed("its frame has a block of a reserved kind");
    const size = header >> 3;
    if (size > 128 << 10) throw new Malformed("its frame has a block that is too large");
    reader.take(kind === 1 ? 1 : size);
  }
  if (flags & 0x04) reader.take(4);
  reader.finish();
}
