// Inodes: attributes and content of one file, and entries of directories, in the one form that releases have.

import { Malformed, Reader, compare, equal } from "./bytes.ts";
import { BODY_BYTES_MAX, BodyReader, KIND, type Reference } from "./block.ts";
import { type MapRoot, type Source, type Value, readRoot } from "./map.ts";

const INLINE_BYTES_MAX = 256;
const INLINE_EXTENTS_MAX = 8;
const INLINE_INODE_BYTES_MAX = 512;
const TARGET_BYTES_MAX = 4095;
const ATTRIBUTE_BYTES_MAX = 64 * 1024;
const FILE_BYTES_MAX = (1n << 63n) - 1n;

export type FileKind = "file" | "directory" | "link" | "fifo" | "socket" | "character device" | "block device";
const KINDS: FileKind[] = ["file", "directory", "link", "fifo", "socket", "character device", "block device"];

/** `length` bytes of a chunk after its first `skip`, at an offset of the file. */
export interface Extent {
  offset: bigint;
  skip: number;
  length: number;
  reference: Reference;
}

export type Content =
  | { is: "none" }
  | { is: "inline"; bytes: Uint8Array }
  | { is: "extents"; extents: Extent[] }
  | { is: "extent map"; map: MapRoot }
  | { is: "directory"; map: MapRoot }
  | { is: "target"; target: Uint8Array };

export interface Inode {
  kind: FileKind;
  mode: number;
  links: number;
  size: bigint;
  modifiedNs: bigint;
  /** Whether listings of it show only names already referred to. */
  opaque: boolean;
  content: Content;
}

export function checkExtent(extent: Extent): Extent {
  const { offset, skip, length, reference } = extent;
  if (length < 1 || length > BODY_BYTES_MAX || skip + length > reference.length) throw new Malformed("an extent leaves its chunk");
  if (offset > FILE_BYTES_MAX - BigInt(length)) throw new Malformed("an extent lies beyond the largest file");
  return extent;
}

function readExtents(reader: BodyReader): Content {
  const chunker = reader.u8();
  if (chunker > 4) throw new Malformed(`chunker ${chunker} is not known`);
  const form = reader.u8();
  if (form === 1) {
    const map = readRoot(reader);
    if ((map?.entries ?? 0n) <= BigInt(INLINE_EXTENTS_MAX)) throw new Malformed("a map of few extents");
    return { is: "extent map", map };
  }
  if (form !== 0) throw new Malformed(`extents of form ${form}`);
  const count = reader.u8();
  if (count > INLINE_EXTENTS_MAX) throw new Malformed("too many extents in an inode");
  let end = 0n;
  const extents = Array.from({ length: count }, () => {
    const [offset, skip, length] = [reader.u64(), reader.u32(), reader.u32()];
    const extent = checkExtent({ offset, skip, length, reference: reader.reference() });
    if (offset < end) throw new Malformed("extents are out of order");
    end = offset + BigInt(length);
    return extent;
  });
  return { is: "extents", extents };
}

function readContent(reader: BodyReader, kind: FileKind, size: bigint): Content {
  const tag = reader.u8();
  switch (tag) {
    case 0:
      if (kind === "directory" || kind === "link") throw new Malformed("a directory or link without content");
      return { is: "none" };
    case 1: {
      const bytes = reader.bytes16();
      const fits = kind === "file" && bytes.length <= INLINE_BYTES_MAX && BigInt(bytes.length) <= size;
      if (!fits) throw new Malformed("bytes that no such inode has");
      return { is: "inline", bytes };
    }
    case 2:
      if (kind !== "file") throw new Malformed("extents of what is no file");
      return readExtents(reader);
    case 3: {
      if (kind !== "directory") throw new Malformed("names in what is no directory");
      const map = readRoot(reader);
      if (reader.u16() !== 0) throw new Malformed("a directory of a release has no change log");
      return { is: "directory", map };
    }
    case 4: {
      const target = reader.bytes16();
      const fits = kind === "link" && target.length >= 1 && target.length <= TARGET_BYTES_MAX && !target.includes(0);
      if (!fits) throw new Malformed("an impossible target of a link");
      return { is: "target", target };
    }
    default:
      throw new Malformed(`content of kind ${tag}`);
  }
}

const OPAQUE = new TextEncoder().encode("holdfast.opaque");

/** Reads the body of an inode whose block has these addresses. */
export function readInode(body: Uint8Array, addresses: Uint8Array[]): Inode {
  const reader = new BodyReader(body, addresses);
  reader.format();
  const kind = KINDS[reader.u8() - 1];
  if (!kind) throw new Malformed("an inode of a kind that is not known");
  const mode = reader.u16();
  const links = reader.u32();
  const size = reader.u64();
  const modifiedNs = reader.i64();
  const changedNs = reader.i64();
  const device = reader.u32();
  const writer = reader.u32();
  if (mode > 0o7777) throw new Malformed("an impossible mode");
  if (size > FILE_BYTES_MAX) throw new Malformed("an impossible size");
  if (writer !== 0 || changedNs !== modifiedNs) throw new Malformed("an inode of a release has no writer and one time");
  if (device !== 0 && !kind.endsWith("device")) throw new Malformed("a device number of what is no device");
  let attributeBytes = 0;
  let opaque = false;
  let previous: Uint8Array | null = null;
  for (let count = reader.u16(); count > 0; count--) {
    const name = reader.take(reader.u8());
    attributeBytes += name.length + reader.bytes32().length;
    if (name.length === 0 || (previous && compare(previous, name) >= 0)) throw new Malformed("attributes are out of order");
    previous = name;
    opaque ||= equal(name, OPAQUE);
  }
  if (attributeBytes > ATTRIBUTE_BYTES_MAX) throw new Malformed("too many attributes");
  const content = readContent(reader, kind, size);
  reader.finish();
  return { kind, mode, links, size, modifiedNs, opaque, content };
}

/** What a name in a directory stands for. */
export interface DirectoryEntry {
  kind: FileKind;
  hasLinks: boolean;
  slot: Inode | Reference;
}

export function isName(name: Uint8Array): boolean {
  const dots = name.length <= 2 && name.every((byte) => byte === 0x2e);
  return name.length >= 1 && name.length <= 255 && !dots && !name.includes(0x2f) && !name.includes(0);
}

export function readEntry(value: Value): DirectoryEntry {
  const reader = new Reader(value.bytes);
  const kind = KINDS[reader.u8() - 1];
  if (!kind) throw new Malformed("an entry of a kind that is not known");
  const hasLinks = reader.flag("the link flag");
  if (hasLinks) reader.u64();
  const form = reader.u8();
  const body = reader.rest();
  if (form === 1 && body.length === 0 && value.references.length === 1) return { kind, hasLinks, slot: value.references[0]! };
  if (form !== 0 || body.length > INLINE_INODE_BYTES_MAX) throw new Malformed("an entry has neither an inode nor a reference to one");
  const inode = readInode(body, value.references.map((reference) => reference.address));
  // The body says the length of each reference once more: it must agree.
  const lengths = referenceLengths(inode);
  if (lengths.some((length, i) => length !== value.references[i]!.length)) throw new Malformed("an inode disagrees with its own references");
  return checkEntry({ kind, hasLinks, slot: inode }, inode);
}

function referenceLengths(inode: Inode): number[] {
  const { content } = inode;
  if (content.is === "extents") return content.extents.map((extent) => extent.reference.length);
  if (content.is === "directory" || content.is === "extent map") return content.map ? [content.map.reference.length] : [];
  return [];
}

function checkEntry(entry: DirectoryEntry, inode: Inode): DirectoryEntry {
  if (inode.kind !== entry.kind) throw new Malformed("an entry says another kind than its inode");
  if (entry.hasLinks !== inode.links > 1 || (entry.hasLinks && inode.kind === "directory")) {
    throw new Malformed("a link count does not go with the names");
  }
  return entry;
}

export async function loadInode(source: Source, reference: Reference): Promise<Inode> {
  const block = await source.fetch(reference, KIND.inode);
  return readInode(block.body, block.references);
}

export async function inodeOf(source: Source, entry: DirectoryEntry): Promise<Inode> {
  if ("kind" in entry.slot) return entry.slot;
  const inode = await loadInode(source, entry.slot);
  checkEntry(entry, inode);
  return inode;
}
