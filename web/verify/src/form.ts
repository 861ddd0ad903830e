// The form that all signed files share: seven bytes that say what it is, a format, one value; and values with signatures.

import { sha256 } from "@noble/hashes/sha2.js";
import { Malformed, Reader, compare, concat, utf8 } from "./bytes.ts";
import { type Domain, WELL_KNOWN, digest } from "./digest.ts";
import { verify } from "./ed25519.ts";

export const FORMAT = 1;
export const KEYS_MAX = 16;

/** Why something signed is not believed. `kind` is the name that the Rust client has for it. */
export class Refusal extends Error {
  override name = "Refusal";
  constructor(readonly kind: string, message: string) {
    super(message);
  }
}

/** Reads a file: refuses a longer one than its kind allows, another kind, another format, and what follows the value. */
export function readFile<T>(bytes: Uint8Array, magic: string, what: string, bytesMax: number, read: (r: Reader) => T): T {
  try {
    if (bytes.length > bytesMax) throw new Malformed(`it is larger than ${bytesMax} bytes`);
    const reader = new Reader(bytes);
    if (compare(reader.take(7), utf8(magic)) !== 0) throw new Malformed("it begins otherwise");
    const format = reader.u8();
    if (format !== FORMAT) throw new Malformed(`its format is ${format}, and this program knows ${FORMAT}`);
    const value = read(reader);
    reader.finish();
    return value;
  } catch (error) {
    if (error instanceof Malformed) throw new Refusal("Malformed", `not a ${what}: ${error.message}`);
    throw error;
  }
}

/** Keys, and how many of them must sign. */
export interface Role {
  keys: Uint8Array[];
  threshold: number;
}

export function readRole(reader: Reader): Role {
  const keys = ascending(reader, reader.u32(), () => reader.take(32), (key) => key);
  const threshold = reader.u16();
  if (keys.length === 0 || keys.length > KEYS_MAX) throw new Malformed(`it has ${keys.length} keys`);
  if (threshold === 0 || threshold > keys.length) throw new Malformed(`it asks for ${threshold} of ${keys.length} signatures`);
  return { keys, threshold };
}

/** A value, its digest, and signatures that nobody has checked. */
export interface Signed<T> {
  value: T;
  digest: Uint8Array;
  signatures: { key: Uint8Array; signature: Uint8Array }[];
}

export function readSigned<T>(reader: Reader, domain: Domain, read: (r: Reader) => T): Signed<T> {
  const from = reader.at;
  const value = read(reader);
  const signedBytes = concat(Uint8Array.of(FORMAT), reader.since(from));
  const one = () => ({ key: reader.take(32), signature: reader.take(64) });
  const signatures = ascending(reader, reader.u32(), one, (entry) => entry.key);
  return { value, digest: digest(WELL_KNOWN, domain, signedBytes), signatures };
}

/** Items of a set or map: in strictly ascending order, so that one value has one encoding. */
function ascending<T>(reader: Reader, count: number, read: () => T, key: (item: T) => Uint8Array): T[] {
  const items: T[] = [];
  for (let i = 0; i < count; i++) {
    // Counts are anybody's claim; what is made is bounded by what is there.
    if (reader.left === 0) throw new Malformed("it ends early");
    const item = read();
    const before = items.at(-1);
    if (before !== undefined && compare(key(before), key(item)) >= 0) throw new Malformed("keys are out of order");
    items.push(item);
  }
  return items;
}

const has = (role: Role, key: Uint8Array) => role.keys.some((known) => compare(known, key) === 0);

/** How many of the role's keys are among these. */
export function countOf(role: Role, keys: Uint8Array[]): number {
  return keys.filter((key) => has(role, key)).length;
}

/** Who has signed: every signature must be good and by a key that may sign. */
export function signers<T>(what: string, signed: Signed<T>, roles: Role[]): Uint8Array[] {
  const stranger = signed.signatures.find(({ key }) => !roles.some((role) => has(role, key)));
  if (stranger) {
    throw new Refusal("Stranger", `the ${what} is signed by a key that may not sign it: ${fingerprint(stranger.key)}`);
  }
  for (const { key, signature } of signed.signatures) {
    if (!verify(key, signed.digest, signature)) {
      const whose = fingerprint(key);
      throw new Refusal("False", `the ${what} does not fit the signature of ${whose}: it was altered or forged`);
    }
  }
  return signed.signatures.map(({ key }) => key);
}

/** Nobody but these roles signed, and enough of each. */
export function check<T>(what: string, signed: Signed<T>, roles: [string, Role][]): void {
  const keys = signers(what, signed, roles.map(([, role]) => role));
  for (const [whose, role] of roles) {
    if (countOf(role, keys) < role.threshold) {
      const count = countOf(role, keys);
      throw new Refusal("TooFew", `the ${what} is signed by ${count} of the ${role.threshold} keys needed of ${whose}`);
    }
  }
}

/** How `ssh-keygen -l` shows a key. */
export function fingerprint(key: Uint8Array): string {
  const name = utf8("ssh-ed25519");
  const bytes = concat(Uint8Array.of(0, 0, 0, name.length), name, Uint8Array.of(0, 0, 0, key.length), key);
  return "SHA256:" + btoa(String.fromCharCode(...sha256(bytes))).replace(/=+$/, "");
}
