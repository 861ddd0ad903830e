// The record of a release, its renewal, and the file they lie in.

import { Malformed, Reader, equal, hex } from "./bytes.ts";
import { type Reference, readReference } from "./block.ts";
import { DOMAIN } from "./digest.ts";
import { type Signed, Refusal, check, readFile, readSigned } from "./form.ts";
import { type KeyChain, type KeySet, whose } from "./keys.ts";
import { LATEST_S, moment } from "./moment.ts";

export const ROOT_BYTES_MAX = 8 * 1024;
const NOTE_BYTES_MAX = 256;

export interface Record {
  release: Uint8Array;
  keySet: bigint;
  sequence: bigint;
  issuedS: bigint;
  expiresS: bigint;
  digestKey: Uint8Array;
  rootDir: Reference;
  previous: Uint8Array | null;
  note: string;
}

export interface Renewal {
  release: Uint8Array;
  record: Uint8Array;
  issuedS: bigint;
  expiresS: bigint;
}

export interface Location {
  digest: Uint8Array;
  bytes: bigint;
}

export interface RootFile {
  record: Signed<Record>;
  renewal: Signed<Renewal> | null;
  index: Location;
}

/** From when to when a record counts by what was signed last. */
export interface Validity {
  fromS: bigint;
  untilS: bigint;
}

/** Whichever of the two lasts longer. */
export function longer(a: Validity, b: Validity): Validity {
  return b.untilS > a.untilS ? b : a;
}

function readRecord(reader: Reader): Record {
  const record = {
    release: reader.digest(),
    keySet: reader.u64(),
    sequence: reader.u64(),
    issuedS: reader.u64(),
    expiresS: reader.u64(),
    digestKey: reader.take(32),
    rootDir: readReference(reader),
    previous: reader.option(() => reader.digest()),
    note: reader.text32(),
  };
  if (record.sequence === 0n) throw new Malformed("records are numbered from 1");
  if (record.sequence === 1n && record.previous) throw new Malformed("the first record names one before it");
  if (new TextEncoder().encode(record.note).length > NOTE_BYTES_MAX) throw new Malformed("its note is too long");
  if (/\p{Cc}/u.test(record.note)) throw new Malformed("its note has control characters");
  return lasts(record);
}

function readRenewal(reader: Reader): Renewal {
  return lasts({ release: reader.digest(), record: reader.digest(), issuedS: reader.u64(), expiresS: reader.u64() });
}

function lasts<T extends { issuedS: bigint; expiresS: bigint }>(value: T): T {
  if (value.expiresS <= value.issuedS || value.expiresS > LATEST_S) {
    throw new Malformed(`it lasts from ${moment(value.issuedS)} to ${moment(value.expiresS)}`);
  }
  return value;
}

export function readRootFile(bytes: Uint8Array): RootFile {
  return readFile(bytes, "HF-root", "signed record of a release", ROOT_BYTES_MAX, (reader) => {
    const location = () => ({ digest: reader.digest(), bytes: reader.u64() });
    const file = {
      record: readSigned(reader, DOMAIN.releaseRecord, readRecord),
      renewal: reader.option(() => readSigned(reader, DOMAIN.releaseFreshness, readRenewal)),
      index: location(),
    };
    // Hints for paths are for servers.
    reader.option(location);
    return file;
  });
}

/** A record, and perhaps a renewal, that the release's keys have signed. */
export interface Authentic {
  validity: Validity;
  /** When the renewal was signed, or without one the record. */
  issuedLastS: bigint;
}

/** Checks that `file` is of the release and signed as the key set demands that it names, current or not. */
export function authenticate(chain: KeyChain, file: RootFile): Authentic {
  const record = file.record.value;
  if (!equal(record.release, chain.id)) {
    throw new Refusal("WrongRelease", `the record is of the release ${hex(record.release)}, not of ${hex(chain.id)}`);
  }
  const set = chain.set(record.keySet);
  if (!set) {
    throw new Refusal(
      "UnknownKeySet",
      `the record is signed by key set ${record.keySet}, and only key sets up to ${chain.current.number} are known; the mirror ` +
        "may not have all of `keys` yet",
    );
  }
  check("record", file.record, [[whose(set.number), set.role]]);
  const byRecord = { fromS: record.issuedS, untilS: record.expiresS };
  if (!file.renewal) return { validity: byRecord, issuedLastS: record.issuedS };
  const byRenewal = renewed(set, file.record, file.renewal);
  const issuedLastS = byRenewal.fromS > record.issuedS ? byRenewal.fromS : record.issuedS;
  return { validity: longer(byRecord, byRenewal), issuedLastS };
}

function renewed(set: KeySet, record: Signed<Record>, renewal: Signed<Renewal>): Validity {
  if (!set.freshness) throw new Refusal("NoRenewals", `the record carries a renewal, and key set ${set.number} allows none`);
  check("renewal", renewal, [[`${whose(set.number)} for renewals`, set.freshness.role]]);
  const { release, record: named, issuedS, expiresS } = renewal.value;
  if (!equal(release, record.value.release) || !equal(named, record.digest)) {
    throw new Refusal("OtherRecord", "the renewal is of another record");
  }
  const { termMaxS, untilS } = set.freshness;
  const allowedS = issuedS + termMaxS < untilS ? issuedS + termMaxS : untilS;
  if (expiresS > allowedS) {
    throw new Refusal(
      "TermTooLong",
      `the renewal ends at ${moment(expiresS)}, and key set ${set.number} allows ${moment(allowedS)} at most`,
    );
  }
  return { fromS: issuedS, untilS: expiresS };
}
