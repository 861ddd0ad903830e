// Blocks: immutable, named by the digest of what they hold. Nothing that a mirror sends is used before it fits that name.

import { Malformed, Reader, equal, hex, u32 } from "./bytes.ts";
import { DOMAIN, type Domain, digest } from "./digest.ts";
import { expand } from "./zstd.ts";

export const BODY_BYTES_MAX = 1 << 20;
const REFERENCES_MAX = 8192;

export const KIND = { chunk: 1, mapLeaf: 2, mapInner: 3, inode: 4 } as const;
export type Kind = (typeof KIND)[keyof typeof KIND];

const DOMAINS: { [kind: number]: Domain } = {
  [KIND.chunk]: DOMAIN.chunk,
  [KIND.mapLeaf]: DOMAIN.mapLeaf,
  [KIND.mapInner]: DOMAIN.mapInner,
  [KIND.inode]: DOMAIN.inode,
};

/** Names one block and bounds it. */
export interface Reference {
  address: Uint8Array;
  /** Bytes of its plain body. */
  length: number;
}

/** A block that is what its name says. */
export interface Block {
  body: Uint8Array;
  references: Uint8Array[];
}

/** A reference as records have it (borsh). */
export function readReference(reader: Reader): Reference {
  algorithm(reader.u8());
  const address = reader.digest();
  const length = reader.u32();
  if (reader.option(() => reader.take(32))) throw new Malformed("its root directory is sealed, which needs a newer program");
  return { address, length };
}

function algorithm(found: number): void {
  if (found !== 1) throw new Malformed(`digest algorithm ${found} is not known`);
}

/** Checks a stored block against the reference that names it, and the kind that its place demands. */
export function openBlock(key: Uint8Array, stored: Uint8Array, reference: Reference, kind: Kind): Block {
  const reader = new Reader(stored);
  const found = reader.u8();
  const codec = reader.u8();
  if (found !== kind) throw new Malformed(`it is a block of kind ${found}, and one of kind ${kind} belongs there`);
  if (reference.length > BODY_BYTES_MAX) throw new Malformed("it would be too large");
  const count = reader.u32();
  if (count > REFERENCES_MAX) throw new Malformed("it has too many references");
  const addresses = reader.take(count * 32);
  const encoded = reader.bytes32();
  reader.finish();
  if (encoded.length > BODY_BYTES_MAX) throw new Malformed("it is too large");
  if (codec > 1) throw new Malformed(`its codec is ${codec}`);
  const body = codec === 0 ? encoded : expand(encoded, reference.length);
  if (body.length !== reference.length) throw new Malformed(`it has ${body.length} bytes, not ${reference.length}`);
  const address = digest(key, DOMAINS[kind]!, u32(count), addresses, body);
  if (!equal(address, reference.address)) throw new Malformed(`it was altered: its digest is ${hex(address).slice(0, 16)}`);
  const references = Array.from({ length: count }, (_, i) => addresses.subarray(i * 32, i * 32 + 32));
  return { body, references };
}

/** Reads a body together with the addresses of its block, each of which must be used once, in order. */
export class BodyReader extends Reader {
  #addresses: Uint8Array[];
  used = 0;

  constructor(body: Uint8Array, addresses: Uint8Array[]) {
    super(body);
    this.#addresses = addresses;
  }

  format(): void {
    const found = this.u8();
    if (found !== 1) throw new Malformed(`its format is ${found}, and this program knows 1`);
  }

  reference(): Reference {
    const address = this.#addresses[this.used++];
    if (!address) throw new Malformed("a reference is missing");
    algorithm(this.u8());
    const length = this.u32();
    if (length > BODY_BYTES_MAX) throw new Malformed("a referenced block is too large");
    if (this.flag("the seal flag")) throw new Malformed("a referenced block is sealed, which needs a newer program");
    return { address, length };
  }

  override finish(): void {
    super.finish();
    if (this.used !== this.#addresses.length) throw new Malformed("it has references that it does not use");
  }
}
