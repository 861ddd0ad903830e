// What this browser remembers of a release: the keys it has followed, the highest record, a revocation. It only grows. Damage is
// an error, never taken for an empty memory: that would be a way to show somebody an older release.

import { Malformed, Reader, equal, hex, unhex } from "./bytes.ts";
import { type Seen } from "./accept.ts";
import { readSignedKeySet, type SignedKeySet, KeyChain } from "./keys.ts";

/** Where it is kept; `localStorage` is one. */
export interface Storage {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
}

export class MemoryError extends Error {
  override name = "MemoryError";
}

export interface Remembered {
  chain: KeyChain | null;
  seen: Seen | null;
  /** A revocation certificate. */
  revoked: Uint8Array | null;
}


const NAME = "holdfast.release.";

export class Memory {
  /** Bytes of the key sets of each chain, by digest of the set. */
  #bytes = new Map<string, Uint8Array>();

  constructor(readonly id: Uint8Array, readonly storage: Storage) {}

  /** Takes note of the bytes of a key set, so that it can be remembered. */
  note(set: SignedKeySet, file: Uint8Array): void {
    this.#bytes.set(hex(set.digest), file.slice(8));
  }

  load(): Remembered {
    const name = NAME + hex(this.id);
    const text = this.storage.getItem(name);
    if (text === null) return { chain: null, seen: null, revoked: null };
    try {
      const state = JSON.parse(text);
      const sets = (state.sets as string[]).map((one) => {
        const bytes = digits(one);
        const reader = new Reader(bytes);
        const set = readSignedKeySet(reader);
        reader.finish();
        this.#bytes.set(hex(set.digest), bytes);
        return set;
      });
      const seen = state.seen && {
        sequence: BigInt(state.seen.sequence),
        record: digits(state.seen.record),
        issuedS: BigInt(state.seen.issued),
        validity: { fromS: BigInt(state.seen.from), untilS: BigInt(state.seen.until) },
        latestS: BigInt(state.seen.latest),
      };
      const chain = sets.length > 0 ? KeyChain.of(this.id, sets) : null;
      return { chain, seen, revoked: state.revoked ? digits(state.revoked) : null };
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      throw new MemoryError(
        `what this browser remembers of the release is damaged: ${why}. Remove '${name}' from its storage, if you accept that a ` +
          "mirror may once show an older release than was seen here",
      );
    }
  }

  /** Remembers at least this. */
  save({ chain, seen, revoked }: Remembered): void {
    const state = {
      sets: (chain?.sets ?? []).map((set) => hex(this.#bytes.get(hex(set.digest))!)),
      seen: seen && {
        sequence: String(seen.sequence),
        record: hex(seen.record),
        issued: String(seen.issuedS),
        from: String(seen.validity.fromS),
        until: String(seen.validity.untilS),
        latest: String(seen.latestS),
      },
      revoked: revoked && hex(revoked),
    };
    try {
      this.storage.setItem(NAME + hex(this.id), JSON.stringify(state));
    } catch {
      throw new MemoryError("this browser does not let the page remember what it has seen, so an older release could pass for the newest");
    }
  }
}

function digits(text: string): Uint8Array {
  const bytes = unhex(text);
  if (!bytes) throw new Malformed("no hexadecimal digits");
  return bytes;
}

/** Takes key sets in that another mirror, or another tab, has shown: the longer chain stands if both agree. */
export function merged(known: KeyChain | null, found: KeyChain): KeyChain {
  if (!known) return found;
  for (const [i, set] of found.sets.entries()) {
    const ours = known.sets[i];
    if (ours && !equal(ours.digest, set.digest)) known.extend(set);
  }
  return found.sets.length > known.sets.length ? found : known;
}
