// What is done before a mirror is believed: look for a revocation, follow the keys, judge the record.

import { Malformed } from "./bytes.ts";
import { plain } from "./names.ts";
import { type Accepted, accept } from "./accept.ts";
import { Refusal } from "./form.ts";
import { KEYS_FILE_BYTES_MAX, KeyChain, SETS_MAX, readKeysFile } from "./keys.ts";
import { type Memory, merged } from "./memory.ts";
import { type Mirror, MirrorError } from "./mirrors.ts";
import { ROOT_BYTES_MAX, type RootFile, readRootFile } from "./record.ts";
import { REVOCATION_BYTES_MAX, type Revoked, verifyRevocation } from "./revocation.ts";

/** The release is over, whatever any mirror says. */
export class RevokedError extends Error {
  override name = "RevokedError";
  constructor(readonly revoked: Revoked, found: string) {
    const { reason, successor } = revoked;
    super(
      `the release was revoked for good by its publisher${reason ? `: ${plain(reason)}` : ", without a reason"} (${found})` +
        (successor ? `. Its successor is ${successor}` : ""),
    );
  }
}

export interface Admitted {
  accepted: Accepted;
  file: RootFile;
  chain: KeyChain;
  notices: string[];
}

export async function admit(memory: Memory, mirror: Mirror, nowS: bigint, allowStale: boolean): Promise<Admitted> {
  const notices = await notRevoked(memory, mirror);
  const followed = await followKeys(memory, mirror);
  const file = readRootFile(await mirror.get("root", null, ROOT_BYTES_MAX));
  // From here to the end nothing is waited for, so no other answer comes between what is read and what is remembered.
  const known = memory.load();
  if (known.revoked) throw new RevokedError(verifyRevocation(memory.id, known.revoked), "found earlier, and remembered");
  const chain = merged(known.chain, followed);
  const accepted = accept(chain, file, known.seen, nowS, allowStale);
  memory.save({ chain, seen: accepted.seen, revoked: null });
  return { accepted, file, chain, notices };
}

/** That a mirror has no certificate proves nothing. A false one is told about, and that is all. */
async function notRevoked(memory: Memory, mirror: Mirror): Promise<string[]> {
  const known = memory.load();
  if (known.revoked) throw new RevokedError(verifyRevocation(memory.id, known.revoked), "found earlier, and remembered");
  let bytes;
  try {
    bytes = await mirror.get("revoked", null, REVOCATION_BYTES_MAX);
  } catch (error) {
    if (!(error instanceof MirrorError) || error.kind === "Unreachable") throw error;
    return error.kind === "Missing" ? [] : [error.message];
  }
  let revoked;
  try {
    revoked = verifyRevocation(memory.id, bytes);
  } catch (error) {
    if (!(error instanceof Refusal || error instanceof Malformed)) throw error;
    return [`${mirror.url}: a false revocation, which is ignored: ${error.message}`];
  }
  memory.save({ ...memory.load(), revoked: bytes });
  throw new RevokedError(revoked, `found at ${mirror.url}`);
}

/** From the keys that are remembered, or from the first, to the last that the mirror has. */
async function followKeys(memory: Memory, mirror: Mirror): Promise<KeyChain> {
  const fetched = async (number: number) => {
    const bytes = await mirror.get(`keys/${number}`, null, KEYS_FILE_BYTES_MAX);
    const set = readKeysFile(bytes);
    memory.note(set, bytes);
    return set;
  };
  const chain = memory.load().chain ?? KeyChain.begin(memory.id, await fetched(1));
  // The last one known is looked at again: another in its place proves that the keys have signed two successions.
  for (let number = Math.max(2, chain.current.number); number <= SETS_MAX; number++) {
    let set;
    try {
      set = await fetched(number);
    } catch (error) {
      // One that lacks what is known already is merely behind, which its record will show.
      if (error instanceof MirrorError && error.kind === "Missing") break;
      throw error;
    }
    if (set.value.number !== number) throw new Refusal("Skipped", `keys/${number} holds key set ${set.value.number}`);
    chain.extend(set);
  }
  memory.save({ ...memory.load(), chain: merged(memory.load().chain, chain) });
  return chain;
}
