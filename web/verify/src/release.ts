// A release as a browser has it: its mirrors, what is believed of them, and the tree that counts now.

import { Malformed, equal, hex, unhex, utf8 } from "./bytes.ts";
import { type Admitted, RevokedError, admit } from "./admit.ts";
import { Blocks, type NamedIndex } from "./blocks.ts";
import { type Change, changes } from "./changes.ts";
import { read } from "./file.ts";
import { Refusal, fingerprint } from "./form.ts";
import { type Inode, inodeOf, isName, loadInode, readEntry } from "./inode.ts";
import { type Source, get, range } from "./map.ts";
import { Memory, MemoryError, type Storage } from "./memory.ts";
import { type Drop, Mirror, MirrorError, Mirrors, mirrorUrl } from "./mirrors.ts";
import { moment } from "./moment.ts";
import { type Path, names, plain, shown, shownName } from "./names.ts";
import { ROOT_BYTES_MAX, authenticate, readRootFile } from "./record.ts";

const LINKS_MAX = 40;
/** Directories within each other that are walked. */
const DEPTH_MAX = 256;
const PAGE = 100;

export interface Options {
  /** Where it is remembered what was seen; `localStorage` in a browser. */
  storage: Storage;
  /** Seconds since 1970; the device's clock if it is left out. */
  now?: () => bigint;
  /** Use a release although it has expired. */
  allowStale?: boolean;
  /** Is told at once when a mirror sent something false. */
  onDrop?: (drop: Drop) => void;
}

/** A file or directory of the release cannot be had as the publisher signed it. */
export class PathError extends Error {
  override name = "PathError";
  constructor(
    readonly path: string,
    /** Whether what the mirrors sent is false; else it is not to be had at all. */
    readonly isFalse: boolean,
    readonly why: string,
  ) {
    super(`${path || "the top directory"}: ${why}`);
  }
}

/** No mirror has the release as it should be. */
export class OpenError extends Error {
  override name = "OpenError";
  constructor(readonly why: { mirror: string; kind: string; message: string }[]) {
    super(`no mirror has the release as it should be:\n${why.map((one) => one.message).join("\n")}`);
  }
}

export interface Status {
  id: string;
  sequence: bigint;
  issuedS: bigint;
  validUntilS: bigint;
  note: string;
  threshold: number;
  keys: { fingerprint: string; signed: boolean }[];
  keySet: number;
  renewedBy: string[];
  certificates: boolean;
  warnings: { kind: string; text: string }[];
  notices: string[];
}

export interface Listed {
  name: Uint8Array;
  kind: string;
  size: bigint;
  mode: number;
  modifiedS: bigint;
  /** Of a symbolic link. */
  target: Uint8Array | null;
  /** A directory that does not list its names. */
  opaque: boolean;
}

export type Found = { is: "there"; inode: Inode; path: Uint8Array[] } | { is: "absent"; below: string } | { is: "outside" };

/** Opens a release at these mirrors. Throws `OpenError`, `RevokedError` or `MemoryError`. */
export async function open(mirrorUrls: string[], id: string, options: Options): Promise<Release> {
  const idBytes = unhex(id.toLowerCase());
  if (!idBytes || idBytes.length !== 32) throw new TypeError("an ID of a release has 64 hexadecimal digits");
  const urls = [...new Set(mirrorUrls.map((url) => mirrorUrl(url)))];
  if (urls.length === 0 || urls.includes(null)) throw new TypeError("a mirror is named by its address, https://HOST/PATH/");
  const now = options.now ?? (() => BigInt(Math.floor(Date.now() / 1000)));
  const mirrors = (urls as string[]).map((url) => new Mirror(url));
  const memory = new Memory(idBytes, options.storage);
  const firstVisit = memory.load().seen === null;
  const answers = await Promise.allSettled(mirrors.map((mirror) => admit(memory, mirror, now(), options.allowStale ?? false)));
  let best: Admitted | null = null;
  const why: OpenError["why"] = [];
  const proofs: string[] = [];
  for (const [i, answer] of answers.entries()) {
    if (answer.status === "fulfilled") {
      const found = answer.value.accepted;
      const known = best?.accepted;
      const newer = !known || found.record.sequence > known.record.sequence ||
        (found.record.sequence === known.record.sequence && found.validUntilS > known.validUntilS);
      if (newer) best = answer.value;
      continue;
    }
    const error: unknown = answer.reason;
    if (error instanceof RevokedError || error instanceof MemoryError) throw error;
    if (!(error instanceof Refusal || error instanceof Malformed || error instanceof MirrorError)) throw error;
    const kind = error instanceof Malformed ? "Malformed" : error.kind;
    const message = error.message.startsWith(mirrors[i]!.url) ? error.message : `${mirrors[i]!.url}: ${error.message}`;
    why.push({ mirror: mirrors[i]!.url, kind, message });
    if (kind === "Equivocation" || kind === "Forked") proofs.push(message);
  }
  if (!best) throw new OpenError(why);
  best.notices.push(...proofs);
  const locations: NamedIndex[] = [];
  for (const [i, answer] of answers.entries()) {
    if (answer.status !== "fulfilled") continue;
    const { index } = answer.value.file;
    const known = locations.find((one) => equal(one.digest, index.digest) && one.bytes === index.bytes);
    if (known) known.by.push(mirrors[i]!);
    else if (answer.value === best) locations.unshift({ ...index, by: [mirrors[i]!] });
    else locations.push({ ...index, by: [mirrors[i]!] });
  }
  const several = new Mirrors(mirrors, options.onDrop ?? (() => {}));
  return new Release(best, new Blocks(best.accepted.record.digestKey, several, locations), now, why.map((one) => one.message), firstVisit);
}

export class Release {
  constructor(
    readonly admitted: Admitted,
    readonly blocks: Blocks,
    readonly now: () => bigint,
    /** What was wrong with mirrors that are not used for it. */
    readonly refused: string[],
    /** Whether this browser had not seen the release before, so that it could not tell an older one. */
    readonly firstVisit: boolean,
  ) {}

  /** What was signed, by whom, and until when it counts. */
  status(): Status {
    const { accepted, chain, file, notices } = this.admitted;
    const signed = file.record.signatures;
    return {
      id: hex(chain.id),
      sequence: accepted.record.sequence,
      issuedS: accepted.record.issuedS,
      validUntilS: accepted.validUntilS,
      note: plain(accepted.record.note),
      threshold: chain.current.role.threshold,
      keys: chain.current.role.keys.map((key) => ({
        fingerprint: fingerprint(key),
        signed: signed.some((one) => equal(one.key, key)),
      })),
      keySet: chain.current.number,
      renewedBy: (file.renewal?.signatures ?? []).map(({ key }) => fingerprint(key)),
      certificates: chain.current.certificates,
      warnings: accepted.warnings,
      notices,
    };
  }

  /** Mirrors that sent something false. */
  get drops(): Drop[] {
    return this.blocks.mirrors.drops;
  }

  /** Where a path leads, through symbolic links. That there is nothing is proven, not believed. */
  async lookup(path: Path, follow = true): Promise<Found> {
    this.#counts();
    return this.#at(shown(path), (source) => this.#resolve(source, names(path), follow));
  }

  /** At most `limit` names of a directory after `after`, in order of bytes. */
  async list(path: Path, after: Uint8Array | null = null, limit = PAGE): Promise<{ entries: Listed[]; total: bigint; opaque: boolean }> {
    const inode = await this.#there(path);
    const { content } = inode;
    if (content.is !== "directory") throw new PathError(shown(path), false, `it is a ${inode.kind}, and has no names`);
    const total = content.map?.entries ?? 0n;
    if (inode.opaque) return { entries: [], total, opaque: true };
    return this.#at(shown(path), async (source) => {
      const found = (await range(source, content.map, after, limit)).map(({ key, value }) => {
        if (!isName(key)) throw new Malformed(`${shownName(key)} is no name`);
        return { name: key, entry: readEntry(value) };
      });
      await source.prefetch(found.flatMap(({ entry }) => ("kind" in entry.slot ? [] : [entry.slot])));
      const entries: Listed[] = [];
      for (const { name, entry } of found) entries.push(listed(name, await inodeOf(source, entry)));
      return { entries, total, opaque: false };
    });
  }

  /** Attributes of what a path leads to. Throws if there is nothing. */
  async stat(path: Path): Promise<Listed> {
    const inode = await this.#there(path);
    return listed(names(path).at(-1) ?? new Uint8Array(), inode);
  }

  /** The bytes of a file from `start` to `end`, in pieces, each verified before it is given out. */
  async *readFile(path: Path, start = 0n, end?: bigint): AsyncGenerator<Uint8Array> {
    const inode = await this.#there(path);
    const name = shown(path);
    if (inode.kind !== "file") throw new PathError(name, false, `it is a ${inode.kind}, and has no bytes`);
    try {
      yield* read(this.blocks.for(name), inode, start, end);
    } catch (error) {
      throw this.#named(name, error);
    }
  }

  /** Everything below a directory, depth first, in order. Opaque directories are not entered. */
  async *walk(path: Path = ""): AsyncGenerator<{ path: Uint8Array[]; entry: Listed }> {
    const top = names(path);
    if (top.length > DEPTH_MAX) throw new PathError(shown(path), false, "it is deeper than any path that is followed");
    for (let after: Uint8Array | null = null; ; ) {
      const { entries } = await this.list(top, after);
      for (const entry of entries) {
        yield { path: [...top, entry.name], entry };
        if (entry.kind === "directory") yield* this.walk([...top, entry.name]);
      }
      if (entries.length < PAGE) return;
      after = entries.at(-1)!.name;
    }
  }

  /** What is different from the release before, as far as a mirror still has that. */
  async *changes(): AsyncGenerator<Change> {
    this.#counts();
    const { record } = this.admitted.accepted;
    if (record.sequence < 2n) throw new PathError("", false, "this is the first release; there is none before it");
    const name = `records/${record.sequence - 1n}`;
    let before, giver;
    try {
      [before, giver] = await this.blocks.mirrors.get(name, null, ROOT_BYTES_MAX, null, (bytes, mirror) => {
        try {
          const file = readRootFile(bytes);
          authenticate(this.admitted.chain, file);
          return [file, mirror] as const;
        } catch (error) {
          if (error instanceof Refusal) throw new Malformed(error.message);
          throw error;
        }
      });
    } catch (error) {
      throw this.#named(name, error);
    }
    if (!record.previous || !equal(before.record.digest, record.previous)) {
      throw new PathError(name, false, "it is not the release that this one names as the one before it");
    }
    if (!equal(before.record.value.digestKey, record.digestKey)) {
      throw new PathError(name, false, "its digests are made with another key, so the two cannot be compared");
    }
    const source = this.blocks.for("what changed since the last release");
    const { index } = before;
    if (this.blocks.locations.every((known) => !equal(known.digest, index.digest))) {
      this.blocks.locations.push({ ...index, by: [giver] });
    }
    try {
      yield* changes(source, before.record.value.rootDir, record.rootDir);
    } catch (error) {
      throw this.#named("what changed since the last release", error);
    }
  }

  async #there(path: Path): Promise<Inode> {
    const found = await this.lookup(path);
    if (found.is === "there") return found.inode;
    const why = found.is === "outside" ? "it leads out of the release" : "it is provably not in the release";
    throw new PathError(shown(path), false, why);
  }

  async #resolve(source: Source, wanted: Uint8Array[], follow: boolean): Promise<Found> {
    const rest = [...wanted].reverse();
    const way: { name: Uint8Array; inode: Inode }[] = [{ name: new Uint8Array(), inode: await loadInode(source, this.admitted.accepted.record.rootDir) }];
    if (way[0]!.inode.kind !== "directory") throw new Malformed("the top is no directory");
    const path = () => way.slice(1).map(({ name }) => name);
    let links = 0;
    for (let name = rest.pop(); name; name = rest.pop()) {
      if (equal(name, utf8(".."))) {
        way.pop();
        if (way.length === 0) return { is: "outside" };
        continue;
      }
      const { content } = way.at(-1)!.inode;
      if (content.is !== "directory") return { is: "absent", below: shown(path()) };
      const value = isName(name) ? await get(source, content.map, name) : null;
      if (!value) return { is: "absent", below: shown(path()) };
      const inode = await inodeOf(source, readEntry(value));
      if (inode.content.is === "target" && (follow || rest.length > 0)) {
        if (++links > LINKS_MAX) throw new Malformed("too many symbolic links in a row");
        const target = inode.content.target;
        if (target[0] === 0x2f) return { is: "outside" };
        rest.push(...split(target).reverse());
      } else {
        way.push({ name, inode });
      }
    }
    return { is: "there", inode: way.at(-1)!.inode, path: path() };
  }

  /** After its end nothing more is looked up. */
  #counts(): void {
    const { validUntilS, warnings } = this.admitted.accepted;
    if (this.now() > validUntilS && !warnings.some((warning) => warning.kind === "Stale")) {
      throw new Refusal("Expired", `the release expired at ${moment(validUntilS)} while this page was open; load it again`);
    }
  }

  async #at<T>(path: string, work: (source: Source) => Promise<T>): Promise<T> {
    try {
      return await work(this.blocks.for(path));
    } catch (error) {
      throw this.#named(path, error);
    }
  }

  /** The error with the name of the file that it is about. */
  #named(path: string, error: unknown): unknown {
    if (error instanceof Malformed) return new PathError(path, true, error.message);
    if (error instanceof MirrorError) {
      const isFalse = error.kind === "Wrong";
      const head = isFalse ? "what the mirror sent is not what the publisher signed: " : "";
      return new PathError(path, isFalse, head + error.message);
    }
    return error;
  }
}

function split(path: Uint8Array): Uint8Array[] {
  const parts: Uint8Array[] = [];
  for (let from = 0, at = 0; at <= path.length; at++) {
    if (at === path.length || path[at] === 0x2f) {
      parts.push(path.subarray(from, at));
      from = at + 1;
    }
  }
  return names(parts);
}

function listed(name: Uint8Array, inode: Inode): Listed {
  const target = inode.content.is === "target" ? inode.content.target : null;
  const { kind, size, mode, opaque } = inode;
  return { name, kind, size, mode, modifiedS: inode.modifiedNs / 1_000_000_000n, target, opaque };
}
