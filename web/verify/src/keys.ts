// Whose signatures count: key sets, each of which names its successor. The id of a release is the digest of the first.

import { Malformed, Reader, equal, hex } from "./bytes.ts";
import { DOMAIN } from "./digest.ts";
import { type Role, type Signed, Refusal, check, readFile, readRole, readSigned } from "./form.ts";
import { LATEST_S } from "./moment.ts";

export const SETS_MAX = 1024;
export const KEYS_FILE_BYTES_MAX = 8 * 1024;
const TERM_MAX_S = 366n * 86_400n;

export interface KeySet {
  number: number;
  /** Digest of the set before; `null` for the first. */
  previous: Uint8Array | null;
  role: Role;
  freshness: { role: Role; termMaxS: bigint; untilS: bigint } | null;
  certificates: boolean;
}

export type SignedKeySet = Signed<KeySet>;

function readKeySet(reader: Reader): KeySet {
  const number = reader.u64();
  const origin = reader.u8();
  if (origin > 1) throw new Malformed(`its origin is of kind ${origin}`);
  let previous = null;
  if (origin === 0) reader.take(16);
  else previous = reader.digest();
  const role = readRole(reader);
  const freshness = reader.option(() => ({ role: readRole(reader), termMaxS: reader.u64(), untilS: reader.u64() }));
  const certificates = reader.flag("the flag of certificates");
  if (number === 0n || number > BigInt(SETS_MAX)) throw new Malformed(`its number is ${number}`);
  if ((previous === null) !== (number === 1n)) throw new Malformed(`number ${number} does not fit what it follows`);
  if (freshness && (freshness.termMaxS === 0n || freshness.termMaxS > TERM_MAX_S || freshness.untilS > LATEST_S)) {
    throw new Malformed("its renewals last too long");
  }
  return { number: Number(number), previous, role, freshness, certificates };
}

export function readSignedKeySet(reader: Reader): SignedKeySet {
  return readSigned(reader, DOMAIN.releaseKeys, readKeySet);
}

export function readKeysFile(bytes: Uint8Array): SignedKeySet {
  return readFile(bytes, "HF-keys", "key set", KEYS_FILE_BYTES_MAX, readSignedKeySet);
}

export const whose = (number: number) => `key set ${number}`;

function wrongId(expected: Uint8Array, found: Uint8Array): Refusal {
  return new Refusal("WrongId", `the key set is of the release ${hex(found)}, not of ${hex(expected)}`);
}

function skipped(expected: number, found: number): Refusal {
  return new Refusal("Skipped", `this is key set ${found}, and key set ${expected} comes next; none may be left out`);
}

export function forked(number: number, known: Uint8Array, found: Uint8Array): Refusal {
  const short = (digest: Uint8Array) => hex(digest).slice(0, 16);
  return new Refusal(
    "Forked",
    `there are two key sets ${number} of the release: ${short(known)} is the one seen first, and stands; ${short(found)} is ` +
      "refused. Ask the publisher; if the keys were stolen, the release must be revoked",
  );
}

/** All key sets from the first to the last known, checked. */
export class KeyChain {
  private constructor(readonly sets: SignedKeySet[]) {}

  static begin(id: Uint8Array, first: SignedKeySet): KeyChain {
    if (!equal(first.digest, id)) throw wrongId(id, first.digest);
    if (first.value.number !== 1) throw skipped(1, first.value.number);
    check("key set", first, [[whose(1), first.value.role]]);
    return new KeyChain([first]);
  }

  static of(id: Uint8Array, sets: SignedKeySet[]): KeyChain {
    if (sets.length === 0) throw new Refusal("Malformed", "not a chain of key sets: it is empty");
    const chain = KeyChain.begin(id, sets[0]!);
    for (const set of sets.slice(1)) chain.#append(set);
    return chain;
  }

  /** The next set, or one that is known already. */
  extend(set: SignedKeySet): void {
    const number = set.value.number;
    const known = this.sets[number - 1];
    if (!known) return this.#append(set);
    if (equal(known.digest, set.digest)) return;
    const before = this.sets[number - 2];
    if (!before) throw wrongId(this.id, set.digest);
    // Only what is signed proves a fork; anything else is somebody's invention.
    follows(before, set);
    throw forked(number, known.digest, set.digest);
  }

  get id(): Uint8Array {
    return this.sets[0]!.digest;
  }

  get current(): KeySet {
    return this.sets.at(-1)!.value;
  }

  set(number: bigint): KeySet | null {
    return number >= 1n && number <= BigInt(this.sets.length) ? this.sets[Number(number) - 1]!.value : null;
  }

  #append(set: SignedKeySet): void {
    follows(this.sets.at(-1)!, set);
    this.sets.push(set);
  }
}

function follows(before: SignedKeySet, next: SignedKeySet): void {
  const number = next.value.number;
  if (number !== before.value.number + 1) throw skipped(before.value.number + 1, number);
  if (next.value.certificates !== before.value.certificates) {
    throw new Refusal("Purpose", `key set ${number} changes whether the release is a certificate directory, which no key set may`);
  }
  check("key set", next, [[whose(number - 1), before.value.role], [whose(number), next.value.role]]);
  const previous = next.value.previous;
  if (previous === null) throw skipped(number, 1);
  if (equal(previous, before.digest)) return;
  throw before.value.number === 1 ? wrongId(before.digest, previous) : forked(before.value.number, before.digest, previous);
}
