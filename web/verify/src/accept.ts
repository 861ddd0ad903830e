// Whether a record counts now, for who has seen so much of the release before: docs/internals/release-format.md, "What a client checks".

import { equal, hex } from "./bytes.ts";
import { Refusal } from "./form.ts";
import type { KeyChain } from "./keys.ts";
import { moment, span } from "./moment.ts";
import { type Record, type RootFile, type Validity, authenticate, longer } from "./record.ts";

/** How far ahead of the clock here something may have been signed: clocks differ. */
const AHEAD_MAX_S = 600n;

/** The highest record that was seen of a release. */
export interface Seen {
  sequence: bigint;
  record: Uint8Array;
  issuedS: bigint;
  validity: Validity;
  /** The latest time at which anything that was accepted was signed. */
  latestS: bigint;
}

export interface Warning {
  /** The name that the Rust client has for it. */
  kind: "HalfLife" | "Stale" | "OlderRenewal" | "OtherHistory" | "ClockBehind";
  text: string;
}

export interface Accepted {
  record: Record;
  digest: Uint8Array;
  validUntilS: bigint;
  warnings: Warning[];
  seen: Seen;
}

const short = (digest: Uint8Array) => hex(digest).slice(0, 16);
const later = (a: bigint, b: bigint) => (a > b ? a : b);

export function accept(chain: KeyChain, file: RootFile, seen: Seen | null, nowS: bigint, allowStale: boolean): Accepted {
  const authentic = authenticate(chain, file);
  const { value: record, digest } = file.record;
  const current = chain.current;
  if (record.keySet < BigInt(current.number)) {
    throw new Refusal(
      "OlderKeySet",
      `the record is signed by key set ${record.keySet}, which key set ${current.number} has replaced; the mirror is behind, or ` +
        "somebody has the old keys",
    );
  }
  if (seen) notOlder(record, digest, seen);
  const latestS = seen?.latestS ?? 0n;
  const timeS = later(nowS, latestS);
  const issuedS = authentic.issuedLastS;
  if (issuedS > later(nowS + AHEAD_MAX_S, latestS)) {
    throw new Refusal(
      "Future",
      `this device's clock says ${moment(nowS)}, but the release was signed at ${moment(issuedS)}. Set the clock; if it is right, ` +
        "the publisher's was wrong, and the release counts from then on",
    );
  }
  const warnings: Warning[] = [];
  if (latestS > nowS + AHEAD_MAX_S) {
    const text = `this device's clock says ${moment(nowS)}, but the release was signed at ${moment(latestS)}; that time is used. Set the clock`;
    warnings.push({ kind: "ClockBehind", text });
  }
  if (seen && record.previous && record.sequence === seen.sequence + 1n && !equal(record.previous, seen.record)) {
    const text =
      `there were two releases ${seen.sequence}: ${short(seen.record)} was seen here, and the new one follows ` +
      `${short(record.previous)}. The publisher has lost and replaced one, or shows different people different things`;
    warnings.push({ kind: "OtherHistory", text });
  }
  const shown = authentic.validity;
  const validity = seen && equal(seen.record, digest) ? longer(shown, seen.validity) : shown;
  const untilS = validity.untilS;
  if (untilS > shown.untilS) {
    const text = `the mirror is behind: it shows a renewal until ${moment(shown.untilS)}, and one until ${moment(untilS)} was seen before`;
    warnings.push({ kind: "OlderRenewal", text });
  }
  if (timeS > untilS) {
    if (!allowStale || current.certificates) {
      throw new Refusal(
        "Expired",
        `the release expired at ${moment(untilS)}, and it is ${moment(timeS)} now` +
          (timeS === nowS ? " by this device's clock" : " by what was seen of the release") +
          ": the publisher has not renewed it, or the mirror holds the renewal back. Try another mirror" +
          (current.certificates ? "; a certificate directory is never used after it has expired" : ""),
      );
    }
    const text =
      `STALE: the release expired ${span(timeS - untilS)} ago, at ${moment(untilS)}; what is shown may be OLD, with faults that ` +
      "the publisher has corrected since. It is used only because that was asked for";
    warnings.push({ kind: "Stale", text });
  } else if (timeS >= validity.fromS + (untilS - validity.fromS) / 2n) {
    const text =
      `the release expires in ${span(untilS - timeS)}, at ${moment(untilS)}, and was not renewed for more than half of its life`;
    warnings.push({ kind: "HalfLife", text });
  }
  const remembered = {
    sequence: record.sequence, record: digest, issuedS: record.issuedS, validity, latestS: later(latestS, issuedS),
  };
  return { record, digest, validUntilS: untilS, warnings, seen: remembered };
}

function notOlder(record: Record, digest: Uint8Array, seen: Seen): void {
  const sequence = record.sequence;
  if (sequence < seen.sequence) {
    throw new Refusal(
      "Rollback",
      `the mirror shows release ${sequence}, and this browser has seen release ${seen.sequence} of it: it is behind, or rolls back`,
    );
  }
  if (sequence === seen.sequence && !equal(digest, seen.record)) {
    throw new Refusal(
      "Equivocation",
      `there are two releases ${sequence}, both signed: ${short(seen.record)} is the one seen first, and ${short(digest)} is ` +
        "another. The publisher shows different people different things, or somebody has the keys",
    );
  }
  if (record.issuedS < seen.issuedS) {
    throw new Refusal(
      "Backwards",
      `release ${sequence} says that it was signed at ${moment(record.issuedS)}, before release ${seen.sequence} (at ` +
        `${moment(seen.issuedS)}); the publisher's clock was wrong, and it has to be published again`,
    );
  }
}
