// What a file looks like, without ever running it: images of few kinds, and text as text. Everything else is only downloaded.

import { concat } from "../src/bytes.ts";
import { shownName } from "../src/names.ts";
import type { Listed, Release } from "../src/release.ts";
import { element, size } from "./dom.ts";

const TEXT_BYTES_MAX = 256 << 10;
const IMAGE_BYTES_MAX = 32n << 20n;
const DOWNLOAD_BYTES_MAX = 1n << 30n;

/** Kinds of images that are nothing but images, by how they begin. SVG is none: it is a document that can run programs. */
const IMAGES: [string, RegExp][] = [
  ["image/png", /^\x89PNG\r\n\x1a\n/],
  ["image/jpeg", /^\xff\xd8\xff/],
  ["image/gif", /^GIF8[79]a/],
  ["image/webp", /^RIFF[\s\S]{4}WEBP/],
  ["image/avif", /^[\s\S]{4}ftypavif/],
];

async function bytesOf(
  release: Release, path: Uint8Array[], end: bigint, onPart: (bytes: number) => void = () => {},
): Promise<Uint8Array> {
  const parts: Uint8Array[] = [];
  let length = 0;
  for await (const part of release.readFile(path, 0n, end)) {
    // A view would keep the whole block.
    parts.push(part.slice());
    length += part.length;
    onPart(length);
  }
  return concat(...parts);
}

/** Blob addresses in use; those of the file before are given up. */
let address: string | null = null;

export async function preview(release: Release, path: Uint8Array[], file: Listed): Promise<HTMLElement> {
  if (address) URL.revokeObjectURL(address);
  address = null;
  const head = await bytesOf(release, path, 64n);
  const image = IMAGES.find(([, begins]) => begins.test(String.fromCharCode(...head)))?.[0];
  if (image && file.size <= IMAGE_BYTES_MAX) {
    address = URL.createObjectURL(new Blob([(await bytesOf(release, path, file.size)) as BlobPart], { type: image }));
    return element("div", { class: "preview" }, element("img", { src: address, alt: shownName(file.name) }));
  }
  const bytes = await bytesOf(release, path, BigInt(TEXT_BYTES_MAX));
  const text = textOf(bytes, file.size > BigInt(bytes.length));
  if (text === null) return element("p", { class: "soft" }, "There is no preview of such a file.");
  const made = element("div", { class: "preview" }, element("pre", { tabindex: "0", "aria-label": "Content of the file" }, text));
  if (file.size > BigInt(bytes.length)) made.append(element("p", { class: "soft" }, `These are its first ${size(bytes.length)}.`));
  return made;
}

/** Text in UTF-8, or `null`. */
function textOf(bytes: Uint8Array, isCut: boolean): string | null {
  if (bytes.includes(0)) return null;
  // The last character may be cut; it is 4 bytes at most.
  for (let cut = 0; cut <= (isCut ? 3 : 0); cut++) {
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(0, bytes.length - cut));
    } catch {
      continue;
    }
  }
  return null;
}

/** Gives a file to the browser to save, when all of it is verified. */
export async function download(release: Release, path: Uint8Array[], file: Listed, onPart: (text: string) => void): Promise<void> {
  if (file.size > DOWNLOAD_BYTES_MAX) {
    const most = size(DOWNLOAD_BYTES_MAX);
    throw new Error(`${shownName(file.name)} is larger than ${most}, which a browser cannot hold; use \`holdfast get\``);
  }
  const bytes = await bytesOf(release, path, file.size, (done) => onPart(`${size(done)} of ${size(file.size)} verified`));
  const blob = URL.createObjectURL(new Blob([bytes as BlobPart], { type: "application/octet-stream" }));
  const link = element("a", { href: blob, download: shownName(file.name) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(blob), 60_000);
  onPart("All of it is verified, and given to the browser to save.");
}
