// Revocation certificates: they prove themselves from the id alone, so whoever carries them need not be trusted.

import { Malformed, Reader, equal, hex, utf8 } from "./bytes.ts";
import { DOMAIN } from "./digest.ts";
import { type Signed, Refusal, countOf, readFile, readSigned, signers } from "./form.ts";
import { KEYS_FILE_BYTES_MAX, KeyChain, SETS_MAX, type SignedKeySet, readSignedKeySet, whose } from "./keys.ts";

export const REVOCATION_BYTES_MAX = SETS_MAX * KEYS_FILE_BYTES_MAX + 8 * 1024;
const REASON_BYTES_MAX = 1024;

interface Statement {
  release: Uint8Array;
  reason: string;
  successor: Uint8Array | null;
}

/** A release that is over. */
export interface Revoked {
  reason: string;
  /** Id of the release that takes its place. */
  successor: string | null;
}

function readStatement(reader: Reader): Statement {
  const statement = { release: reader.digest(), reason: reader.text32(), successor: reader.option(() => reader.digest()) };
  if (utf8(statement.reason).length > REASON_BYTES_MAX) throw new Malformed("its reason is too long");
  if (/[^\P{Cc}\n]/u.test(statement.reason)) throw new Malformed("its reason has control characters");
  if (statement.successor && equal(statement.successor, statement.release)) {
    throw new Malformed("it names the release as its own successor");
  }
  return statement;
}

function readCertificate(reader: Reader): { sets: SignedKeySet[]; statement: Signed<Statement> } {
  const count = reader.u32();
  const sets: SignedKeySet[] = [];
  for (let i = 0; i < count; i++) {
    // Each is checked anew; more than there can be are not begun.
    if (sets.length >= SETS_MAX) throw new Malformed("it has too many key sets");
    sets.push(readSignedKeySet(reader));
  }
  return { sets, statement: readSigned(reader, DOMAIN.releaseRevocation, readStatement) };
}

/** Checks that the certificate revokes the release `id`; throws if it is not to be honoured. */
export function verifyRevocation(id: Uint8Array, bytes: Uint8Array): Revoked {
  const { sets, statement } = readFile(bytes, "HF-revo", "revocation certificate", REVOCATION_BYTES_MAX, readCertificate);
  const { release, reason, successor } = statement.value;
  if (!equal(release, id)) throw new Refusal("WrongRelease", `the certificate revokes the release ${hex(release)}, not ${hex(id)}`);
  const chain = KeyChain.of(id, sets);
  const roles = chain.sets.map((set) => set.value.role);
  const keys = signers("revocation", statement, roles);
  if (!roles.some((role) => countOf(role, keys) >= role.threshold)) {
    throw new Refusal("TooFew", `the revocation is signed by too few keys of ${whose(chain.current.number)} and of those before`);
  }
  return { reason, successor: successor && hex(successor) };
}
