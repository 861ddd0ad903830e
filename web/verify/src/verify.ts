// The verifier as a library: `open` a release, then `list`, `stat`, `readFile`, `lookup`, `walk`, `changes`.

export { type Accepted, type Seen, accept } from "./accept.ts";
export { RevokedError } from "./admit.ts";
export { Malformed, hex, unhex } from "./bytes.ts";
export { type Change } from "./changes.ts";
export { Refusal, fingerprint } from "./form.ts";
export { KeyChain, readKeysFile } from "./keys.ts";
export { MemoryError, type Storage } from "./memory.ts";
export { type Drop, MirrorError, mirrorUrl } from "./mirrors.ts";
export { moment, span } from "./moment.ts";
export { readRootFile } from "./record.ts";
export { type Path, names, shown, shownName } from "./names.ts";
export { type Listed, OpenError, type Options, PathError, Release, type Status, open } from "./release.ts";
export { verifyRevocation } from "./revocation.ts";
export { verify as verifySignature } from "./ed25519.ts";
export { openBlock } from "./block.ts";
export { readEntry } from "./inode.ts";
export { diff, get, range } from "./map.ts";
export { WELL_KNOWN, digest } from "./digest.ts";
