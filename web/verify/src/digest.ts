// Digests (docs/internals/format.md): keyed BLAKE3 over a domain and bytes. The domain keeps bytes of one kind from passing for another.

import { blake3 } from "@noble/hashes/blake3.js";
import { utf8 } from "./bytes.ts";

export const DOMAIN = {
  chunk: 1,
  mapLeaf: 2,
  mapInner: 3,
  inode: 4,
  boundary: 26,
  releaseKeys: 40,
  releaseRecord: 41,
  releaseFreshness: 42,
  releaseRevocation: 43,
  releaseFile: 44,
} as const;

export type Domain = (typeof DOMAIN)[keyof typeof DOMAIN];

/** The key under which everything is digested that is signed. */
export const WELL_KNOWN = utf8("holdfast well-known digest key 1");

export function digest(key: Uint8Array, domain: Domain, ...parts: Uint8Array[]): Uint8Array {
  const hasher = blake3.create({ key });
  const framed = new Uint8Array(8);
  framed[0] = domain;
  hasher.update(framed);
  for (const part of parts) hasher.update(part);
  return hasher.digest();
}
