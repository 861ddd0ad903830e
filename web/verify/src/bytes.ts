// Bytes: comparing, hexadecimal digits, and a reader of untrusted encodings that refuses whatever is not there.

/** Bytes that are not what they should be. */
export class Malformed extends Error {
  override name = "Malformed";
}

export function equal(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && compare(a, b) === 0;
}

/** Order of bytes, a shorter one first where one begins as the other. */
export function compare(a: Uint8Array, b: Uint8Array): number {
  const shorter = Math.min(a.length, b.length);
  for (let i = 0; i < shorter; i++) {
    if (a[i] !== b[i]) return a[i]! - b[i]!;
  }
  return a.length - b.length;
}

export function concat(...parts: Uint8Array[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

export function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function unhex(text: string): Uint8Array | null {
  if (text.length % 2 !== 0 || !/^[0-9a-f]*$/.test(text)) return null;
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

export function utf8(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

export function u32(value: number): Uint8Array {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, value, true);
  return bytes;
}

/** Reads little-endian values. What is read is never more than what is there. */
export class Reader {
  #bytes: Uint8Array;
  #view: DataView;
  at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get left(): number {
    return this.#bytes.length - this.at;
  }

  /** A view, not a copy. */
  take(length: number): Uint8Array {
    if (length > this.left) throw new Malformed("it ends early");
    this.at += length;
    return this.#bytes.subarray(this.at - length, this.at);
  }

  /** What was read since `from`. */
  since(from: number): Uint8Array {
    return this.#bytes.subarray(from, this.at);
  }

  rest(): Uint8Array {
    return this.take(this.left);
  }

  u8(): number {
    return this.take(1)[0]!;
  }

  u16(): number {
    this.take(2);
    return this.#view.getUint16(this.at - 2, true);
  }

  u32(): number {
    this.take(4);
    return this.#view.getUint32(this.at - 4, true);
  }

  u64(): bigint {
    this.take(8);
    return this.#view.getBigUint64(this.at - 8, true);
  }

  i64(): bigint {
    this.take(8);
    return this.#view.getBigInt64(this.at - 8, true);
  }

  /** 0 or 1, and nothing else. */
  flag(what: string): boolean {
    const found = this.u8();
    if (found > 1) throw new Malformed(`${what} is ${found}`);
    return found === 1;
  }

  digest(): Uint8Array {
    return this.take(32);
  }

  option<T>(read: () => T): T | null {
    return this.flag("an option") ? read() : null;
  }

  bytes16(): Uint8Array {
    return this.take(this.u16());
  }

  bytes32(): Uint8Array {
    return this.take(this.u32());
  }

  /** Text in UTF-8. */
  text32(): string {
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(this.bytes32());
    } catch (error) {
      if (error instanceof Malformed) throw error;
      throw new Malformed("text is not UTF-8");
    }
  }

  finish(): void {
    if (this.left > 0) throw new Malformed(`${this.left} bytes too many`);
  }
}

/** A number that a browser can count with: up to 2^53 - 1. */
export function safe(value: bigint, what: string): number {
  if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw new Malformed(`${what} is too large for a browser`);
  return Number(value);
}
