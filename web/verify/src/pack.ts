// Packs: frames, one after the other. A frame says which block it claims to be; nothing in it is believed.

import { Malformed, Reader } from "./bytes.ts";

export const FRAME_BYTES_MAX = 4 + 32 + (1 << 20) + 8192 * 32 + 64;

export interface Frame {
  address: Uint8Array;
  stored: Uint8Array;
}

/** The frame that `bytes` begin with; `null` if there is no whole one. */
export function firstFrame(bytes: Uint8Array): { frame: Frame; bytes: number } | null {
  try {
    const reader = new Reader(bytes);
    const length = reader.u32();
    if (length < 32 || length > FRAME_BYTES_MAX - 4) return null;
    const frame = { address: reader.take(32), stored: reader.take(length - 32) };
    return { frame, bytes: reader.at };
  } catch (error) {
    if (error instanceof Malformed) return null;
    throw error;
  }
}

/** All whole frames from the beginning on. */
export function* frames(bytes: Uint8Array): Generator<Frame> {
  for (let found = firstFrame(bytes); found; found = firstFrame(bytes)) {
    yield found.frame;
    bytes = bytes.subarray(found.bytes);
  }
}
