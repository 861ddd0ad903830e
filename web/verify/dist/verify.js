// src/bytes.ts
var Malformed = class extends Error {
  name = "Malformed";
};
function equal(a, b) {
  return a.length === b.length && compare(a, b) === 0;
}
function compare(a, b) {
  const shorter = Math.min(a.length, b.length);
  for (let i = 0; i < shorter; i++) {
    if (a[i] !== b[i]) return a[i] - b[i];
  }
  return a.length - b.length;
}
function concat(...parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}
function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
function unhex(text) {
  if (text.length % 2 !== 0 || !/^[0-9a-f]*$/.test(text)) return null;
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}
function utf8(text) {
  return new TextEncoder().encode(text);
}
function u32(value) {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, value, true);
  return bytes;
}
var Reader = class {
  #bytes;
  #view;
  at = 0;
  constructor(bytes) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }
  get left() {
    return this.#bytes.length - this.at;
  }
  /** A view, not a copy. */
  take(length) {
    if (length > this.left) throw new Malformed("it ends early");
    this.at += length;
    return this.#bytes.subarray(this.at - length, this.at);
  }
  /** What was read since `from`. */
  since(from) {
    return this.#bytes.subarray(from, this.at);
  }
  rest() {
    return this.take(this.left);
  }
  u8() {
    return this.take(1)[0];
  }
  u16() {
    this.take(2);
    return this.#view.getUint16(this.at - 2, true);
  }
  u32() {
    this.take(4);
    return this.#view.getUint32(this.at - 4, true);
  }
  u64() {
    this.take(8);
    return this.#view.getBigUint64(this.at - 8, true);
  }
  i64() {
    this.take(8);
    return this.#view.getBigInt64(this.at - 8, true);
  }
  /** 0 or 1, and nothing else. */
  flag(what) {
    const found = this.u8();
    if (found > 1) throw new Malformed(`${what} is ${found}`);
    return found === 1;
  }
  digest() {
    return this.take(32);
  }
  option(read2) {
    return this.flag("an option") ? read2() : null;
  }
  bytes16() {
    return this.take(this.u16());
  }
  bytes32() {
    return this.take(this.u32());
  }
  /** Text in UTF-8. */
  text32() {
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(this.bytes32());
    } catch (error) {
      if (error instanceof Malformed) throw error;
      throw new Malformed("text is not UTF-8");
    }
  }
  finish() {
    if (this.left > 0) throw new Malformed(`${this.left} bytes too many`);
  }
};

// node_modules/@noble/hashes/_u64.js
var U32_MASK64 = /* @__PURE__ */ (() => BigInt(2 ** 32 - 1))();
var _32n = /* @__PURE__ */ BigInt(32);
function fromBig(n, le = false) {
  if (le)
    return { h: Number(n & U32_MASK64), l: Number(n >> _32n & U32_MASK64) };
  return { h: Number(n >> _32n & U32_MASK64) | 0, l: Number(n & U32_MASK64) | 0 };
}
function split(lst, le = false) {
  const len = lst.length;
  let Ah = new Uint32Array(len);
  let Al = new Uint32Array(len);
  for (let i = 0; i < len; i++) {
    const { h, l } = fromBig(lst[i], le);
    [Ah[i], Al[i]] = [h, l];
  }
  return [Ah, Al];
}
var fromNumH = (n) => n / 2 ** 32 | 0;
var fromNumL = (n) => n >>> 0;
function setU64FromNum(view, byteOffset, n, isLE2) {
  const h = fromNumH(n);
  const l = fromNumL(n);
  view.setUint32(byteOffset, isLE2 ? l : h, isLE2);
  view.setUint32(byteOffset + 4, isLE2 ? h : l, isLE2);
}
var shrSH = (h, _l, s) => h >>> s;
var shrSL = (h, l, s) => h << 32 - s | l >>> s;
var rotrSH = (h, l, s) => h >>> s | l << 32 - s;
var rotrSL = (h, l, s) => h << 32 - s | l >>> s;
var rotrBH = (h, l, s) => h << 64 - s | l >>> s - 32;
var rotrBL = (h, l, s) => h >>> s - 32 | l << 64 - s;
function add(Ah, Al, Bh, Bl) {
  const l = (Al >>> 0) + (Bl >>> 0);
  return { h: Ah + Bh + (l / 2 ** 32 | 0) | 0, l: l | 0 };
}
var add3L = (Al, Bl, Cl) => (Al >>> 0) + (Bl >>> 0) + (Cl >>> 0);
var add3H = (low, Ah, Bh, Ch) => Ah + Bh + Ch + (low / 2 ** 32 | 0) | 0;
var add4L = (Al, Bl, Cl, Dl) => (Al >>> 0) + (Bl >>> 0) + (Cl >>> 0) + (Dl >>> 0);
var add4H = (low, Ah, Bh, Ch, Dh) => Ah + Bh + Ch + Dh + (low / 2 ** 32 | 0) | 0;
var add5L = (Al, Bl, Cl, Dl, El) => (Al >>> 0) + (Bl >>> 0) + (Cl >>> 0) + (Dl >>> 0) + (El >>> 0);
var add5H = (low, Ah, Bh, Ch, Dh, Eh) => Ah + Bh + Ch + Dh + Eh + (low / 2 ** 32 | 0) | 0;

// node_modules/@noble/hashes/utils.js
function isBytes(a) {
  return a instanceof Uint8Array || ArrayBuffer.isView(a) && a.constructor.name === "Uint8Array" && "BYTES_PER_ELEMENT" in a && a.BYTES_PER_ELEMENT === 1;
}
var atitle = (title) => title ? `"${title}" ` : "";
function anumber(n, title = "") {
  if (typeof n !== "number")
    throw new TypeError(atitle(title) + "expected number, got " + typeof n);
  if (!Number.isSafeInteger(n) || n < 0)
    throw new RangeError(atitle(title) + "expected integer >= 0, got " + n);
  return n;
}
function abytes(value, length, title = "") {
  if (isBytes(value) && (length === void 0 || value.length === length))
    return value;
  if (length !== void 0)
    anumber(length, "length");
  const bytes = isBytes(value);
  const ofLen = length !== void 0 ? ` of length ${length}` : "";
  const got = bytes ? `length=${value.length}` : `type=${typeof value}`;
  const message = atitle(title) + "expected Uint8Array" + ofLen + ", got " + got;
  if (!bytes)
    throw new TypeError(message);
  throw new RangeError(message);
}
function copyBytes(bytes) {
  return Uint8Array.from(abytes(bytes));
}
var aobject = (value, label) => {
  if (value === null || typeof value !== "object" || Array.isArray(value))
    throw new TypeError((label === "object" ? "" : `"${label}" `) + "expected object, got type=" + typeof value);
};
var aopts = (value, label) => {
  aobject(value, label);
  const proto = Object.getPrototypeOf(value);
  if (proto !== Object.prototype && proto !== null)
    throw new TypeError(`"${label}" expected plain object`);
  if (Object.hasOwn(value, "__proto__"))
    throw new TypeError(`"${label}.__proto__" is not allowed`);
};
function aexists(instance, checkFinished = true) {
  if (instance.destroyed)
    throw new Error("hash was destroyed");
  if (checkFinished && instance.finished)
    throw new Error("digest() was already called");
}
function aoutput(out, instance) {
  abytes(out, void 0, "output");
  const min2 = instance.outputLen;
  if (!(out.length >= min2)) {
    throw new RangeError('"output" expected length >= ' + min2);
  }
}
function u8(arr) {
  return new Uint8Array(arr.buffer, arr.byteOffset, arr.byteLength);
}
function u322(arr) {
  return new Uint32Array(arr.buffer, arr.byteOffset, Math.floor(arr.byteLength / 4));
}
function clean(...arrays) {
  for (let i = 0; i < arrays.length; i++) {
    arrays[i].fill(0);
  }
}
function createView(arr) {
  return new DataView(arr.buffer, arr.byteOffset, arr.byteLength);
}
function rotr(word, shift) {
  return word << 32 - shift | word >>> shift;
}
var isLE = /* @__PURE__ */ (() => new Uint8Array(new Uint32Array([287454020]).buffer)[0] === 68)();
function byteSwap(word) {
  return word << 24 & 4278190080 | word << 8 & 16711680 | word >>> 8 & 65280 | word >>> 24 & 255;
}
var swap8IfBE = isLE ? (n) => n : (n) => byteSwap(n) >>> 0;
function byteSwap32(arr) {
  for (let i = 0; i < arr.length; i++) {
    arr[i] = byteSwap(arr[i]);
  }
  return arr;
}
var swap32IfBE = isLE ? (u) => u : byteSwap32;
var hasHexBuiltin = /* @__PURE__ */ (() => (
  // @ts-ignore
  typeof Uint8Array.from([]).toHex === "function" && typeof Uint8Array.fromHex === "function"
))();
var hexes = /* @__PURE__ */ Array.from({ length: 256 }, (_, i) => i.toString(16).padStart(2, "0"));
function bytesToHex(bytes) {
  abytes(bytes);
  if (hasHexBuiltin)
    return bytes.toHex();
  let hex2 = "";
  for (let i = 0; i < bytes.length; i++) {
    hex2 += hexes[bytes[i]];
  }
  return hex2;
}
function asciiToBase16(ch) {
  return ch >= 48 && ch <= 57 ? ch - 48 : ch >= 65 && ch <= 70 ? ch - (65 - 10) : ch >= 97 && ch <= 102 ? ch - (97 - 10) : void 0;
}
function hexToBytes(hex2) {
  if (typeof hex2 !== "string")
    throw new TypeError("hex string expected, got " + typeof hex2);
  if (hasHexBuiltin) {
    try {
      return Uint8Array.fromHex(hex2);
    } catch (error) {
      if (error instanceof SyntaxError)
        throw new RangeError(error.message);
      throw error;
    }
  }
  const hl = hex2.length;
  const al = hl / 2;
  if (hl % 2)
    throw new RangeError("hex string expected, got unpadded hex of length " + hl);
  const array = new Uint8Array(al);
  for (let ai = 0, hi = 0; ai < al; ai++, hi += 2) {
    const n1 = asciiToBase16(hex2.charCodeAt(hi));
    const n2 = asciiToBase16(hex2.charCodeAt(hi + 1));
    if (n1 === void 0 || n2 === void 0) {
      const char = hex2[hi] + hex2[hi + 1];
      throw new RangeError('hex string expected, got non-hex character "' + char + '" at index ' + hi);
    }
    array[ai] = n1 * 16 + n2;
  }
  return array;
}
function concatBytes(...arrays) {
  let sum = 0;
  for (let i = 0; i < arrays.length; i++) {
    const a = arrays[i];
    abytes(a);
    sum += a.length;
  }
  const res = new Uint8Array(sum);
  for (let i = 0, pad = 0; i < arrays.length; i++) {
    const a = arrays[i];
    res.set(a, pad);
    pad += a.length;
  }
  return res;
}
function checkOpts(defaults, opts, title = "opts") {
  aopts(defaults, "defaults");
  if (opts !== void 0)
    aopts(opts, title);
  const merged2 = Object.assign(/* @__PURE__ */ Object.create(null), defaults, opts);
  return merged2;
}
function createHasher(hashCons, info = {}) {
  if (typeof hashCons !== "function")
    throw new TypeError('"hashCons" expected function, got type=' + typeof hashCons);
  info = checkOpts({}, info, "info");
  const hashC = (msg, opts) => hashCons(opts).update(msg).digest();
  const tmp = hashCons(void 0);
  hashC.outputLen = tmp.outputLen;
  hashC.blockLen = tmp.blockLen;
  hashC.canXOF = tmp.canXOF;
  hashC.create = (opts) => hashCons(opts);
  Object.assign(hashC, info);
  return Object.freeze(hashC);
}
function randomBytes(bytesLength = 32) {
  anumber(bytesLength, "bytesLength");
  const cr = typeof globalThis === "object" ? globalThis.crypto : null;
  if (typeof cr?.getRandomValues !== "function")
    throw new Error("crypto.getRandomValues must be defined");
  if (bytesLength > 65536)
    throw new RangeError(`"bytesLength" expected <= 65536, got ${bytesLength}`);
  return cr.getRandomValues(new Uint8Array(bytesLength));
}
var oidNist = (suffix) => ({
  // Current NIST hashAlgs suffixes used here fit in one DER subidentifier octet.
  // Larger suffix values would need base-128 OID encoding and a different length byte.
  oid: Uint8Array.from([6, 9, 96, 134, 72, 1, 101, 3, 4, 2, suffix])
});

// node_modules/@noble/hashes/_md.js
function Chi(a, b, c) {
  return a & b ^ ~a & c;
}
function Maj(a, b, c) {
  return a & b ^ a & c ^ b & c;
}
var HashMD = class {
  blockLen;
  outputLen;
  canXOF = false;
  padOffset;
  isLE;
  // For partial updates less than block size
  buffer;
  view;
  finished = false;
  length = 0;
  pos = 0;
  destroyed = false;
  constructor(blockLen, outputLen, padOffset, isLE2) {
    this.blockLen = blockLen;
    this.outputLen = outputLen;
    this.padOffset = padOffset;
    this.isLE = isLE2;
    this.buffer = new Uint8Array(blockLen);
    this.view = createView(this.buffer);
  }
  update(data) {
    aexists(this);
    abytes(data);
    const { view, buffer, blockLen } = this;
    const len = data.length;
    let processed = false;
    for (let pos = 0; pos < len; ) {
      const take = Math.min(blockLen - this.pos, len - pos);
      if (take === blockLen) {
        const dataView = createView(data);
        for (; blockLen <= len - pos; pos += blockLen)
          this.process(dataView, pos);
        processed = true;
        continue;
      }
      buffer.set(pos === 0 && take === len ? data : data.subarray(pos, pos + take), this.pos);
      this.pos += take;
      pos += take;
      if (this.pos === blockLen) {
        this.process(view, 0);
        this.pos = 0;
        processed = true;
      }
    }
    this.length += data.length;
    if (processed)
      this.roundClean();
    return this;
  }
  digestInto(out) {
    aexists(this);
    aoutput(out, this);
    this.finished = true;
    const { buffer, view, blockLen, isLE: isLE2 } = this;
    let { pos } = this;
    buffer[pos++] = 128;
    buffer.fill(0, pos);
    if (this.padOffset > blockLen - pos) {
      this.process(view, 0);
      buffer.fill(0);
    }
    setU64FromNum(view, blockLen - 8, this.length * 8, isLE2);
    this.process(view, 0);
    this.roundClean();
    const oview = out === buffer ? view : createView(out);
    const len = this.outputLen;
    const outLen = len / 4;
    const state = this.get();
    if (len % 4 || outLen > state.length)
      throw new Error("invalid outputLen");
    for (let i = 0; i < outLen; i++)
      oview.setUint32(4 * i, state[i], isLE2);
  }
  digest() {
    const { buffer, outputLen } = this;
    this.digestInto(buffer);
    const res = buffer.slice(0, outputLen);
    this.destroy();
    return res;
  }
  _cloneIntoMeta(to) {
    const { buffer, length, finished, destroyed, pos } = this;
    to.destroyed = destroyed;
    to.finished = finished;
    to.length = length;
    to.pos = pos;
    if (pos)
      to.buffer.set(buffer);
    return to;
  }
  clone() {
    return this._cloneInto();
  }
};
var SHA256_IV = /* @__PURE__ */ Uint32Array.from([
  1779033703,
  3144134277,
  1013904242,
  2773480762,
  1359893119,
  2600822924,
  528734635,
  1541459225
]);
var SHA512_IV = /* @__PURE__ */ Uint32Array.from([
  1779033703,
  4089235720,
  3144134277,
  2227873595,
  1013904242,
  4271175723,
  2773480762,
  1595750129,
  1359893119,
  2917565137,
  2600822924,
  725511199,
  528734635,
  4215389547,
  1541459225,
  327033209
]);

// node_modules/@noble/hashes/sha2.js
var SHA256_K = /* @__PURE__ */ Uint32Array.from([
  1116352408,
  1899447441,
  3049323471,
  3921009573,
  961987163,
  1508970993,
  2453635748,
  2870763221,
  3624381080,
  310598401,
  607225278,
  1426881987,
  1925078388,
  2162078206,
  2614888103,
  3248222580,
  3835390401,
  4022224774,
  264347078,
  604807628,
  770255983,
  1249150122,
  1555081692,
  1996064986,
  2554220882,
  2821834349,
  2952996808,
  3210313671,
  3336571891,
  3584528711,
  113926993,
  338241895,
  666307205,
  773529912,
  1294757372,
  1396182291,
  1695183700,
  1986661051,
  2177026350,
  2456956037,
  2730485921,
  2820302411,
  3259730800,
  3345764771,
  3516065817,
  3600352804,
  4094571909,
  275423344,
  430227734,
  506948616,
  659060556,
  883997877,
  958139571,
  1322822218,
  1537002063,
  1747873779,
  1955562222,
  2024104815,
  2227730452,
  2361852424,
  2428436474,
  2756734187,
  3204031479,
  3329325298
]);
var SHA256_W = /* @__PURE__ */ new Uint32Array(64);
var SHA2_32B = class extends HashMD {
  // We cannot use array here since array allows indexing by variable
  // which means optimizer/compiler cannot use registers.
  // Numeric initializers matter: starting the fields as `undefined` changes
  // V8's field representation and makes sha256 3x slower (measured).
  A = 0;
  B = 0;
  C = 0;
  D = 0;
  E = 0;
  F = 0;
  G = 0;
  H = 0;
  constructor(outputLen, IV) {
    super(64, outputLen, 8, false);
    this.A = IV[0] | 0;
    this.B = IV[1] | 0;
    this.C = IV[2] | 0;
    this.D = IV[3] | 0;
    this.E = IV[4] | 0;
    this.F = IV[5] | 0;
    this.G = IV[6] | 0;
    this.H = IV[7] | 0;
  }
  get() {
    const { A, B, C, D, E, F, G, H } = this;
    return [A, B, C, D, E, F, G, H];
  }
  // prettier-ignore
  set(A, B, C, D, E, F, G, H) {
    this.A = A | 0;
    this.B = B | 0;
    this.C = C | 0;
    this.D = D | 0;
    this.E = E | 0;
    this.F = F | 0;
    this.G = G | 0;
    this.H = H | 0;
  }
  _cloneInto(to) {
    (to ||= new this.constructor()).set(...this.get());
    return this._cloneIntoMeta(to);
  }
  process(view, offset) {
    for (let i = 0; i < 16; i++, offset += 4)
      SHA256_W[i] = view.getUint32(offset, false);
    for (let i = 16; i < 64; i++) {
      const W15 = SHA256_W[i - 15];
      const W2 = SHA256_W[i - 2];
      const s0 = rotr(W15, 7) ^ rotr(W15, 18) ^ W15 >>> 3;
      const s1 = rotr(W2, 17) ^ rotr(W2, 19) ^ W2 >>> 10;
      SHA256_W[i] = s1 + SHA256_W[i - 7] + s0 + SHA256_W[i - 16] | 0;
    }
    let { A, B, C, D, E, F, G, H } = this;
    for (let i = 0; i < 64; i++) {
      const sigma1 = rotr(E, 6) ^ rotr(E, 11) ^ rotr(E, 25);
      const T1 = H + sigma1 + Chi(E, F, G) + SHA256_K[i] + SHA256_W[i] | 0;
      const sigma0 = rotr(A, 2) ^ rotr(A, 13) ^ rotr(A, 22);
      const T2 = sigma0 + Maj(A, B, C) | 0;
      H = G;
      G = F;
      F = E;
      E = D + T1 | 0;
      D = C;
      C = B;
      B = A;
      A = T1 + T2 | 0;
    }
    A = A + this.A | 0;
    B = B + this.B | 0;
    C = C + this.C | 0;
    D = D + this.D | 0;
    E = E + this.E | 0;
    F = F + this.F | 0;
    G = G + this.G | 0;
    H = H + this.H | 0;
    this.set(A, B, C, D, E, F, G, H);
  }
  roundClean() {
    clean(SHA256_W);
  }
  destroy() {
    this.destroyed = true;
    this.set(0, 0, 0, 0, 0, 0, 0, 0);
    clean(this.buffer);
  }
};
var _SHA256 = class extends SHA2_32B {
  constructor() {
    super(32, SHA256_IV);
  }
};
var K512 = /* @__PURE__ */ (() => split([
  "0x428a2f98d728ae22",
  "0x7137449123ef65cd",
  "0xb5c0fbcfec4d3b2f",
  "0xe9b5dba58189dbbc",
  "0x3956c25bf348b538",
  "0x59f111f1b605d019",
  "0x923f82a4af194f9b",
  "0xab1c5ed5da6d8118",
  "0xd807aa98a3030242",
  "0x12835b0145706fbe",
  "0x243185be4ee4b28c",
  "0x550c7dc3d5ffb4e2",
  "0x72be5d74f27b896f",
  "0x80deb1fe3b1696b1",
  "0x9bdc06a725c71235",
  "0xc19bf174cf692694",
  "0xe49b69c19ef14ad2",
  "0xefbe4786384f25e3",
  "0x0fc19dc68b8cd5b5",
  "0x240ca1cc77ac9c65",
  "0x2de92c6f592b0275",
  "0x4a7484aa6ea6e483",
  "0x5cb0a9dcbd41fbd4",
  "0x76f988da831153b5",
  "0x983e5152ee66dfab",
  "0xa831c66d2db43210",
  "0xb00327c898fb213f",
  "0xbf597fc7beef0ee4",
  "0xc6e00bf33da88fc2",
  "0xd5a79147930aa725",
  "0x06ca6351e003826f",
  "0x142929670a0e6e70",
  "0x27b70a8546d22ffc",
  "0x2e1b21385c26c926",
  "0x4d2c6dfc5ac42aed",
  "0x53380d139d95b3df",
  "0x650a73548baf63de",
  "0x766a0abb3c77b2a8",
  "0x81c2c92e47edaee6",
  "0x92722c851482353b",
  "0xa2bfe8a14cf10364",
  "0xa81a664bbc423001",
  "0xc24b8b70d0f89791",
  "0xc76c51a30654be30",
  "0xd192e819d6ef5218",
  "0xd69906245565a910",
  "0xf40e35855771202a",
  "0x106aa07032bbd1b8",
  "0x19a4c116b8d2d0c8",
  "0x1e376c085141ab53",
  "0x2748774cdf8eeb99",
  "0x34b0bcb5e19b48a8",
  "0x391c0cb3c5c95a63",
  "0x4ed8aa4ae3418acb",
  "0x5b9cca4f7763e373",
  "0x682e6ff3d6b2b8a3",
  "0x748f82ee5defb2fc",
  "0x78a5636f43172f60",
  "0x84c87814a1f0ab72",
  "0x8cc702081a6439ec",
  "0x90befffa23631e28",
  "0xa4506cebde82bde9",
  "0xbef9a3f7b2c67915",
  "0xc67178f2e372532b",
  "0xca273eceea26619c",
  "0xd186b8c721c0c207",
  "0xeada7dd6cde0eb1e",
  "0xf57d4f7fee6ed178",
  "0x06f067aa72176fba",
  "0x0a637dc5a2c898a6",
  "0x113f9804bef90dae",
  "0x1b710b35131c471b",
  "0x28db77f523047d84",
  "0x32caab7b40c72493",
  "0x3c9ebe0a15c9bebc",
  "0x431d67c49c100d4c",
  "0x4cc5d4becb3e42b6",
  "0x597f299cfc657e2a",
  "0x5fcb6fab3ad6faec",
  "0x6c44198c4a475817"
].map((n) => BigInt(n))))();
var SHA512_Kh = /* @__PURE__ */ (() => K512[0])();
var SHA512_Kl = /* @__PURE__ */ (() => K512[1])();
var SHA512_W_H = /* @__PURE__ */ new Uint32Array(80);
var SHA512_W_L = /* @__PURE__ */ new Uint32Array(80);
var SHA2_64B = class extends HashMD {
  // We cannot use array here since array allows indexing by variable
  // which means optimizer/compiler cannot use registers.
  // h -- high 32 bits, l -- low 32 bits
  // Numeric initializers matter: starting the fields as `undefined` changes
  // V8's field representation and slows hashing down (measured on sha256).
  Ah = 0;
  Al = 0;
  Bh = 0;
  Bl = 0;
  Ch = 0;
  Cl = 0;
  Dh = 0;
  Dl = 0;
  Eh = 0;
  El = 0;
  Fh = 0;
  Fl = 0;
  Gh = 0;
  Gl = 0;
  Hh = 0;
  Hl = 0;
  constructor(outputLen, IV) {
    super(128, outputLen, 16, false);
    this.Ah = IV[0] | 0;
    this.Al = IV[1] | 0;
    this.Bh = IV[2] | 0;
    this.Bl = IV[3] | 0;
    this.Ch = IV[4] | 0;
    this.Cl = IV[5] | 0;
    this.Dh = IV[6] | 0;
    this.Dl = IV[7] | 0;
    this.Eh = IV[8] | 0;
    this.El = IV[9] | 0;
    this.Fh = IV[10] | 0;
    this.Fl = IV[11] | 0;
    this.Gh = IV[12] | 0;
    this.Gl = IV[13] | 0;
    this.Hh = IV[14] | 0;
    this.Hl = IV[15] | 0;
  }
  // prettier-ignore
  get() {
    const { Ah, Al, Bh, Bl, Ch, Cl, Dh, Dl, Eh, El, Fh, Fl, Gh, Gl, Hh, Hl } = this;
    return [Ah, Al, Bh, Bl, Ch, Cl, Dh, Dl, Eh, El, Fh, Fl, Gh, Gl, Hh, Hl];
  }
  // prettier-ignore
  set(Ah, Al, Bh, Bl, Ch, Cl, Dh, Dl, Eh, El, Fh, Fl, Gh, Gl, Hh, Hl) {
    this.Ah = Ah | 0;
    this.Al = Al | 0;
    this.Bh = Bh | 0;
    this.Bl = Bl | 0;
    this.Ch = Ch | 0;
    this.Cl = Cl | 0;
    this.Dh = Dh | 0;
    this.Dl = Dl | 0;
    this.Eh = Eh | 0;
    this.El = El | 0;
    this.Fh = Fh | 0;
    this.Fl = Fl | 0;
    this.Gh = Gh | 0;
    this.Gl = Gl | 0;
    this.Hh = Hh | 0;
    this.Hl = Hl | 0;
  }
  _cloneInto(to) {
    (to ||= new this.constructor()).set(...this.get());
    return this._cloneIntoMeta(to);
  }
  process(view, offset) {
    for (let i = 0; i < 16; i++, offset += 4) {
      SHA512_W_H[i] = view.getUint32(offset);
      SHA512_W_L[i] = view.getUint32(offset += 4);
    }
    for (let i = 16; i < 80; i++) {
      const W15h = SHA512_W_H[i - 15] | 0;
      const W15l = SHA512_W_L[i - 15] | 0;
      const s0h = rotrSH(W15h, W15l, 1) ^ rotrSH(W15h, W15l, 8) ^ shrSH(W15h, W15l, 7);
      const s0l = rotrSL(W15h, W15l, 1) ^ rotrSL(W15h, W15l, 8) ^ shrSL(W15h, W15l, 7);
      const W2h = SHA512_W_H[i - 2] | 0;
      const W2l = SHA512_W_L[i - 2] | 0;
      const s1h = rotrSH(W2h, W2l, 19) ^ rotrBH(W2h, W2l, 61) ^ shrSH(W2h, W2l, 6);
      const s1l = rotrSL(W2h, W2l, 19) ^ rotrBL(W2h, W2l, 61) ^ shrSL(W2h, W2l, 6);
      const SUMl = add4L(s0l, s1l, SHA512_W_L[i - 7], SHA512_W_L[i - 16]);
      const SUMh = add4H(SUMl, s0h, s1h, SHA512_W_H[i - 7], SHA512_W_H[i - 16]);
      SHA512_W_H[i] = SUMh | 0;
      SHA512_W_L[i] = SUMl | 0;
    }
    let { Ah, Al, Bh, Bl, Ch, Cl, Dh, Dl, Eh, El, Fh, Fl, Gh, Gl, Hh, Hl } = this;
    for (let i = 0; i < 80; i++) {
      const sigma1h = rotrSH(Eh, El, 14) ^ rotrSH(Eh, El, 18) ^ rotrBH(Eh, El, 41);
      const sigma1l = rotrSL(Eh, El, 14) ^ rotrSL(Eh, El, 18) ^ rotrBL(Eh, El, 41);
      const CHIh = Eh & Fh ^ ~Eh & Gh;
      const CHIl = El & Fl ^ ~El & Gl;
      const T1ll = add5L(Hl, sigma1l, CHIl, SHA512_Kl[i], SHA512_W_L[i]);
      const T1h = add5H(T1ll, Hh, sigma1h, CHIh, SHA512_Kh[i], SHA512_W_H[i]);
      const T1l = T1ll | 0;
      const sigma0h = rotrSH(Ah, Al, 28) ^ rotrBH(Ah, Al, 34) ^ rotrBH(Ah, Al, 39);
      const sigma0l = rotrSL(Ah, Al, 28) ^ rotrBL(Ah, Al, 34) ^ rotrBL(Ah, Al, 39);
      const MAJh = Ah & Bh ^ Ah & Ch ^ Bh & Ch;
      const MAJl = Al & Bl ^ Al & Cl ^ Bl & Cl;
      Hh = Gh | 0;
      Hl = Gl | 0;
      Gh = Fh | 0;
      Gl = Fl | 0;
      Fh = Eh | 0;
      Fl = El | 0;
      ({ h: Eh, l: El } = add(Dh | 0, Dl | 0, T1h | 0, T1l | 0));
      Dh = Ch | 0;
      Dl = Cl | 0;
      Ch = Bh | 0;
      Cl = Bl | 0;
      Bh = Ah | 0;
      Bl = Al | 0;
      const All = add3L(T1l, sigma0l, MAJl);
      Ah = add3H(All, T1h, sigma0h, MAJh);
      Al = All | 0;
    }
    ({ h: Ah, l: Al } = add(this.Ah | 0, this.Al | 0, Ah | 0, Al | 0));
    ({ h: Bh, l: Bl } = add(this.Bh | 0, this.Bl | 0, Bh | 0, Bl | 0));
    ({ h: Ch, l: Cl } = add(this.Ch | 0, this.Cl | 0, Ch | 0, Cl | 0));
    ({ h: Dh, l: Dl } = add(this.Dh | 0, this.Dl | 0, Dh | 0, Dl | 0));
    ({ h: Eh, l: El } = add(this.Eh | 0, this.El | 0, Eh | 0, El | 0));
    ({ h: Fh, l: Fl } = add(this.Fh | 0, this.Fl | 0, Fh | 0, Fl | 0));
    ({ h: Gh, l: Gl } = add(this.Gh | 0, this.Gl | 0, Gh | 0, Gl | 0));
    ({ h: Hh, l: Hl } = add(this.Hh | 0, this.Hl | 0, Hh | 0, Hl | 0));
    this.set(Ah, Al, Bh, Bl, Ch, Cl, Dh, Dl, Eh, El, Fh, Fl, Gh, Gl, Hh, Hl);
  }
  roundClean() {
    clean(SHA512_W_H, SHA512_W_L);
  }
  destroy() {
    this.destroyed = true;
    clean(this.buffer);
    this.set(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  }
};
var _SHA512 = class extends SHA2_64B {
  constructor() {
    super(64, SHA512_IV);
  }
};
var sha256 = /* @__PURE__ */ createHasher(
  () => new _SHA256(),
  /* @__PURE__ */ oidNist(1)
);
var sha512 = /* @__PURE__ */ createHasher(
  () => new _SHA512(),
  /* @__PURE__ */ oidNist(3)
);

// node_modules/@noble/hashes/_blake.js
function G1s(a, b, c, d, x) {
  a = a + b + x | 0;
  d = rotr(d ^ a, 16);
  c = c + d | 0;
  b = rotr(b ^ c, 12);
  return { a, b, c, d };
}
function G2s(a, b, c, d, x) {
  a = a + b + x | 0;
  d = rotr(d ^ a, 8);
  c = c + d | 0;
  b = rotr(b ^ c, 7);
  return { a, b, c, d };
}

// node_modules/@noble/hashes/blake2.js
var _BLAKE2 = class {
  buffer;
  buffer32;
  finished = false;
  destroyed = false;
  length = 0;
  pos = 0;
  blockLen;
  outputLen;
  canXOF = false;
  constructor(blockLen, outputLen) {
    anumber(blockLen);
    anumber(outputLen);
    this.blockLen = blockLen;
    this.outputLen = outputLen;
    this.buffer = new Uint8Array(blockLen);
    this.buffer32 = u322(this.buffer);
  }
  update(data) {
    aexists(this);
    abytes(data);
    const { blockLen, buffer, buffer32 } = this;
    const len = data.length;
    const offset = data.byteOffset;
    const buf = data.buffer;
    for (let pos = 0; pos < len; ) {
      if (this.pos === blockLen) {
        swap32IfBE(buffer32);
        this.compress(buffer32, 0, false);
        swap32IfBE(buffer32);
        this.pos = 0;
      }
      const take = Math.min(blockLen - this.pos, len - pos);
      const dataOffset = offset + pos;
      if (take === blockLen && !(dataOffset % 4) && pos + take < len) {
        const data32 = new Uint32Array(buf, dataOffset, Math.floor((len - pos) / 4));
        swap32IfBE(data32);
        for (let pos32 = 0; pos + blockLen < len; pos32 += buffer32.length, pos += blockLen) {
          this.length += blockLen;
          this.compress(data32, pos32, false);
        }
        swap32IfBE(data32);
        continue;
      }
      buffer.set(pos === 0 && take === len ? data : data.subarray(pos, pos + take), this.pos);
      this.pos += take;
      this.length += take;
      pos += take;
    }
    return this;
  }
  digestInto(out) {
    aexists(this);
    aoutput(out, this);
    if (out.byteOffset & 3)
      throw new RangeError('"output" expected 4-byte aligned byteOffset, got ' + out.byteOffset);
    const { pos, buffer32 } = this;
    this.finished = true;
    this.buffer.fill(0, pos);
    swap32IfBE(buffer32);
    this.compress(buffer32, 0, true);
    swap32IfBE(buffer32);
    const state = this.get();
    const out32 = out === this.buffer ? buffer32 : u322(out);
    const full = Math.floor(this.outputLen / 4);
    for (let i = 0; i < full; i++)
      out32[i] = swap8IfBE(state[i]);
    const tail = this.outputLen % 4;
    if (!tail)
      return;
    const off = full * 4;
    const word = state[full];
    for (let i = 0; i < tail; i++)
      out[off + i] = word >>> 8 * i;
  }
  digest() {
    const { buffer, outputLen } = this;
    this.digestInto(buffer);
    const res = buffer.slice(0, outputLen);
    this.destroy();
    return res;
  }
  _cloneInto(to) {
    const { buffer, length, finished, destroyed, outputLen, pos } = this;
    to ||= new this.constructor({ dkLen: outputLen });
    to.set(...this.get());
    to.buffer.set(buffer);
    to.destroyed = destroyed;
    to.finished = finished;
    to.length = length;
    to.pos = pos;
    to.outputLen = outputLen;
    return to;
  }
  clone() {
    return this._cloneInto();
  }
};
function _compress(s, offset, msg, rounds, v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15) {
  let j = 0;
  for (let i = 0; i < rounds; i++) {
    ({ a: v0, b: v4, c: v8, d: v12 } = G1s(v0, v4, v8, v12, msg[offset + s[j++]]));
    ({ a: v0, b: v4, c: v8, d: v12 } = G2s(v0, v4, v8, v12, msg[offset + s[j++]]));
    ({ a: v1, b: v5, c: v9, d: v13 } = G1s(v1, v5, v9, v13, msg[offset + s[j++]]));
    ({ a: v1, b: v5, c: v9, d: v13 } = G2s(v1, v5, v9, v13, msg[offset + s[j++]]));
    ({ a: v2, b: v6, c: v10, d: v14 } = G1s(v2, v6, v10, v14, msg[offset + s[j++]]));
    ({ a: v2, b: v6, c: v10, d: v14 } = G2s(v2, v6, v10, v14, msg[offset + s[j++]]));
    ({ a: v3, b: v7, c: v11, d: v15 } = G1s(v3, v7, v11, v15, msg[offset + s[j++]]));
    ({ a: v3, b: v7, c: v11, d: v15 } = G2s(v3, v7, v11, v15, msg[offset + s[j++]]));
    ({ a: v0, b: v5, c: v10, d: v15 } = G1s(v0, v5, v10, v15, msg[offset + s[j++]]));
    ({ a: v0, b: v5, c: v10, d: v15 } = G2s(v0, v5, v10, v15, msg[offset + s[j++]]));
    ({ a: v1, b: v6, c: v11, d: v12 } = G1s(v1, v6, v11, v12, msg[offset + s[j++]]));
    ({ a: v1, b: v6, c: v11, d: v12 } = G2s(v1, v6, v11, v12, msg[offset + s[j++]]));
    ({ a: v2, b: v7, c: v8, d: v13 } = G1s(v2, v7, v8, v13, msg[offset + s[j++]]));
    ({ a: v2, b: v7, c: v8, d: v13 } = G2s(v2, v7, v8, v13, msg[offset + s[j++]]));
    ({ a: v3, b: v4, c: v9, d: v14 } = G1s(v3, v4, v9, v14, msg[offset + s[j++]]));
    ({ a: v3, b: v4, c: v9, d: v14 } = G2s(v3, v4, v9, v14, msg[offset + s[j++]]));
  }
  return { v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15 };
}

// node_modules/@noble/hashes/blake3.js
var B3_Flags = {
  CHUNK_START: 1,
  CHUNK_END: 2,
  PARENT: 4,
  ROOT: 8,
  KEYED_HASH: 16,
  DERIVE_KEY_CONTEXT: 32,
  DERIVE_KEY_MATERIAL: 64
};
var B3_IV = /* @__PURE__ */ SHA256_IV.slice();
var B3_SIGMA = /* @__PURE__ */ (() => {
  const Id = Array.from({ length: 16 }, (_, i) => i);
  const permute = (arr) => [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8].map((i) => arr[i]);
  const res = [];
  for (let i = 0, v = Id; i < 7; i++, v = permute(v))
    res.push(...v);
  return Uint8Array.from(res);
})();
var _BLAKE3 = class __BLAKE3 extends _BLAKE2 {
  canXOF = true;
  chunkPos = 0;
  // Position of current block in chunk
  // How many chunks we already have; exact while this stays within
  // JS's safe-integer range.
  chunksDone = 0;
  flags = 0 | 0;
  IV;
  state;
  stack = [];
  // Output
  posOut = 0;
  bufferOut32 = new Uint32Array(16);
  bufferOut;
  // Index of output chunk; exact while this stays within JS's
  // safe-integer range.
  chunkOut = 0;
  enableXOF = true;
  constructor(opts = {}, flags = 0) {
    opts = checkOpts({}, opts);
    super(64, opts.dkLen === void 0 ? 32 : opts.dkLen);
    const { key: key2, context } = opts;
    const hasContext = context !== void 0;
    if (key2 !== void 0) {
      if (hasContext)
        throw new Error('cannot use both "key" and "context"');
      abytes(key2, 32, "key");
      const k = copyBytes(key2);
      this.IV = u322(k);
      swap32IfBE(this.IV);
      this.flags = flags | B3_Flags.KEYED_HASH;
    } else if (hasContext) {
      abytes(context, void 0, "context");
      const ctx = context;
      const contextKey = new __BLAKE3({ dkLen: 32 }, B3_Flags.DERIVE_KEY_CONTEXT).update(ctx).digest();
      this.IV = u322(contextKey);
      swap32IfBE(this.IV);
      this.flags = flags | B3_Flags.DERIVE_KEY_MATERIAL;
    } else {
      this.IV = B3_IV;
      this.flags = flags;
    }
    this.state = this.IV.slice();
    this.bufferOut = u8(this.bufferOut32);
  }
  // _BLAKE2's scalar-state hooks are unused here: BLAKE3 keeps its tree/XOF state in arrays and
  // copies it directly in _cloneInto().
  get() {
    return [];
  }
  set() {
  }
  // Truncated chunk/parent compression: seed v8..v15 as IV[0..3], t0, t1,
  // block length, and flags, then keep only the first 8 output words.
  b2Compress(counter, flags, buf, bufPos = 0) {
    const { state: s, pos } = this;
    const t0 = fromNumL(counter);
    const t1 = fromNumH(counter);
    const { v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15 } = _compress(B3_SIGMA, bufPos, buf, 7, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], B3_IV[0], B3_IV[1], B3_IV[2], B3_IV[3], t0, t1, pos, flags);
    s[0] = v0 ^ v8;
    s[1] = v1 ^ v9;
    s[2] = v2 ^ v10;
    s[3] = v3 ^ v11;
    s[4] = v4 ^ v12;
    s[5] = v5 ^ v13;
    s[6] = v6 ^ v14;
    s[7] = v7 ^ v15;
  }
  compress(buf, bufPos = 0, isLast = false) {
    let flags = this.flags;
    if (!this.chunkPos)
      flags |= B3_Flags.CHUNK_START;
    if (this.chunkPos === 15 || isLast)
      flags |= B3_Flags.CHUNK_END;
    if (!isLast)
      this.pos = this.blockLen;
    this.b2Compress(this.chunksDone, flags, buf, bufPos);
    this.chunkPos += 1;
    if (this.chunkPos === 16 || isLast) {
      let chunk = this.state;
      this.state = this.IV.slice();
      for (let last, chunks = this.chunksDone + 1; isLast || !(chunks & 1); chunks = Math.floor(chunks / 2)) {
        if (!(last = this.stack.pop()))
          break;
        this.buffer32.set(last, 0);
        this.buffer32.set(chunk, 8);
        this.pos = this.blockLen;
        this.b2Compress(0, this.flags | B3_Flags.PARENT, this.buffer32, 0);
        chunk = this.state;
        this.state = this.IV.slice();
      }
      this.chunksDone++;
      this.chunkPos = 0;
      this.stack.push(chunk);
    }
    this.pos = 0;
  }
  // Overriding hides _BLAKE2's flat implementation, which would otherwise be inherited
  // and silently miss the tree state (CV stack, chunk counters; get()/set() are stubs here).
  _cloneInto(to) {
    const staleOutput = !!to && to.finished && !to.destroyed;
    to = super._cloneInto(to);
    const { IV, flags, state, chunkPos, posOut, chunkOut, stack, chunksDone } = this;
    to.state.set(state);
    to.stack = stack.map((i) => Uint32Array.from(i));
    if (IV === B3_IV) {
      if (to.IV !== B3_IV)
        clean(to.IV);
      to.IV = B3_IV;
    } else if (to.IV === B3_IV) {
      to.IV = IV.slice();
    } else {
      to.IV.set(IV);
    }
    to.flags = flags;
    to.chunkPos = chunkPos;
    to.chunksDone = chunksDone;
    to.posOut = posOut;
    to.chunkOut = chunkOut;
    to.enableXOF = this.enableXOF;
    if (this.finished) {
      to.bufferOut32.set(this.bufferOut32);
    } else if (staleOutput) {
      clean(to.bufferOut32);
    }
    return to;
  }
  destroy() {
    this.destroyed = true;
    clean(this.state, this.buffer32, this.bufferOut32);
    if (this.IV !== B3_IV)
      clean(this.IV);
    clean(...this.stack);
  }
  // Root/XOF compression: rerun the same ROOT inputs with incrementing output
  // counter `t` and materialize all 16 output words.
  // Same as b2Compress, but doesn't modify state and returns 16 u32 array (instead of 8)
  b2CompressOut() {
    const { state: s, pos, flags, buffer32, bufferOut32: out32 } = this;
    const outCounter = this.chunkOut++;
    const t0 = fromNumL(outCounter);
    const t1 = fromNumH(outCounter);
    swap32IfBE(buffer32);
    const { v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15 } = _compress(B3_SIGMA, 0, buffer32, 7, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], B3_IV[0], B3_IV[1], B3_IV[2], B3_IV[3], t0, t1, pos, flags);
    out32[0] = v0 ^ v8;
    out32[1] = v1 ^ v9;
    out32[2] = v2 ^ v10;
    out32[3] = v3 ^ v11;
    out32[4] = v4 ^ v12;
    out32[5] = v5 ^ v13;
    out32[6] = v6 ^ v14;
    out32[7] = v7 ^ v15;
    out32[8] = s[0] ^ v8;
    out32[9] = s[1] ^ v9;
    out32[10] = s[2] ^ v10;
    out32[11] = s[3] ^ v11;
    out32[12] = s[4] ^ v12;
    out32[13] = s[5] ^ v13;
    out32[14] = s[6] ^ v14;
    out32[15] = s[7] ^ v15;
    swap32IfBE(buffer32);
    swap32IfBE(out32);
    this.posOut = 0;
  }
  finish() {
    if (this.finished)
      return;
    this.finished = true;
    this.buffer.fill(0, this.pos);
    let flags = this.flags | B3_Flags.ROOT;
    if (this.stack.length) {
      flags |= B3_Flags.PARENT;
      swap32IfBE(this.buffer32);
      this.compress(this.buffer32, 0, true);
      swap32IfBE(this.buffer32);
      this.chunksDone = 0;
      this.pos = this.blockLen;
    } else {
      flags |= (!this.chunkPos ? B3_Flags.CHUNK_START : 0) | B3_Flags.CHUNK_END;
    }
    this.flags = flags;
    this.b2CompressOut();
  }
  writeInto(out) {
    aexists(this, false);
    abytes(out);
    this.finish();
    const { blockLen, bufferOut } = this;
    for (let pos = 0, len = out.length; pos < len; ) {
      if (this.posOut >= blockLen)
        this.b2CompressOut();
      const take = Math.min(blockLen - this.posOut, len - pos);
      out.set(bufferOut.subarray(this.posOut, this.posOut + take), pos);
      this.posOut += take;
      pos += take;
    }
    return out;
  }
  xofInto(out) {
    if (!this.enableXOF)
      throw new Error("no XOF after digest()");
    return this.writeInto(out);
  }
  xof(bytes) {
    anumber(bytes);
    return this.xofInto(new Uint8Array(bytes));
  }
  digestInto(out) {
    aoutput(out, this);
    if (this.finished)
      throw new Error("digest() was already called");
    this.enableXOF = false;
    this.writeInto(out.length === this.outputLen ? out : out.subarray(0, this.outputLen));
    this.destroy();
  }
  digest() {
    const out = new Uint8Array(this.outputLen);
    this.digestInto(out);
    return out;
  }
};
var blake3 = /* @__PURE__ */ createHasher((opts = {}) => new _BLAKE3(opts));

// src/digest.ts
var DOMAIN = {
  chunk: 1,
  mapLeaf: 2,
  mapInner: 3,
  inode: 4,
  boundary: 26,
  releaseKeys: 40,
  releaseRecord: 41,
  releaseFreshness: 42,
  releaseRevocation: 43,
  releaseFile: 44
};
var WELL_KNOWN = utf8("holdfast well-known digest key 1");
function digest(key2, domain, ...parts) {
  const hasher = blake3.create({ key: key2 });
  const framed = new Uint8Array(8);
  framed[0] = domain;
  hasher.update(framed);
  for (const part of parts) hasher.update(part);
  return hasher.digest();
}

// node_modules/@noble/curves/utils.js
function aarray(item, title, inner = () => {
}) {
  if (!Array.isArray(item))
    throw new TypeError(`"${title}" expected array, got type=${typeof item}`);
  for (let i = 0; i < item.length; i++)
    inner(item[i], `${title}[${i}]`);
  return item;
}
var abytes2 = (value, length, title) => abytes(value, length, title);
var anumber2 = anumber;
function aobject2(value, title = "object") {
  if (value === null || typeof value !== "object" || Array.isArray(value))
    throw new TypeError(title === "object" ? "expected valid options object" : `"${title}" expected object, got type=${typeof value}`);
  return value;
}
function afunction(value, title) {
  if (typeof value !== "function")
    throw new TypeError(`"${title}" is invalid: expected function, got ${typeof value}`);
  return value;
}
var bytesToHex2 = bytesToHex;
var concatBytes2 = (...arrays) => concatBytes(...arrays);
var hexToBytes2 = (hex2) => hexToBytes(hex2);
var isBytes2 = isBytes;
var randomBytes2 = (bytesLength) => randomBytes(bytesLength);
var _0n = /* @__PURE__ */ BigInt(0);
var _1n = /* @__PURE__ */ BigInt(1);
var atitle2 = (title) => title ? `"${title}" ` : "";
function abool(value, title = "") {
  if (typeof value !== "boolean")
    throw new TypeError(atitle2(title) + "expected boolean, got type=" + typeof value);
  return value;
}
function abignumber(n) {
  if (typeof n === "bigint") {
    if (!isPosBig(n))
      throw new RangeError("positive bigint expected, got " + n);
  } else
    anumber2(n);
  return n;
}
function asafenumber(value, title = "") {
  if (typeof value !== "number") {
    const prefix = title && `"${title}" `;
    throw new TypeError(prefix + "expected number, got type=" + typeof value);
  }
  if (!Number.isSafeInteger(value)) {
    const prefix = title && `"${title}" `;
    throw new RangeError(prefix + "expected safe integer, got " + value);
  }
}
function hexToNumber(hex2) {
  if (typeof hex2 !== "string")
    throw new TypeError("hex string expected, got " + typeof hex2);
  return hex2 === "" ? _0n : BigInt("0x" + hex2);
}
function bytesToNumberBE(bytes) {
  return hexToNumber(bytesToHex(bytes));
}
function bytesToNumberLE(bytes) {
  return hexToNumber(bytesToHex(copyBytes2(abytes(bytes)).reverse()));
}
function numberToBytesBE(n, len) {
  anumber(len);
  if (len === 0)
    throw new Error("zero output length is invalid");
  n = abignumber(n);
  const expectedLen = len * 2;
  const hex2 = n.toString(16);
  if (hex2.length > expectedLen)
    throw new RangeError("number is too large");
  return hexToBytes(hex2.padStart(expectedLen, "0"));
}
function numberToBytesLE(n, len) {
  return numberToBytesBE(n, len).reverse();
}
function copyBytes2(bytes) {
  return Uint8Array.from(abytes2(bytes));
}
function isPosBig(n) {
  return typeof n === "bigint" && _0n <= n;
}
function inRange(n, min2, max) {
  return isPosBig(n) && isPosBig(min2) && isPosBig(max) && min2 <= n && n < max;
}
function aInRange(title, n, min2, max) {
  if (!inRange(n, min2, max))
    throw new RangeError("expected valid " + title + ": " + min2 + " <= n < " + max + ", got " + n);
}
function bitLen(n) {
  if (n < _0n)
    throw new Error("expected non-negative bigint, got " + n);
  return n === _0n ? 0 : n.toString(2).length;
}
var bitMask = (n) => {
  asafenumber(n, "n");
  return (_1n << BigInt(n)) - _1n;
};
function validateObject(object, fields = {}, optFields = {}, title = "object") {
  aobject2(object, title);
  aobject2(fields, "fields");
  aobject2(optFields, "optFields");
  function checkField(fieldName, expectedType, isOpt) {
    const label = title === "object" ? `param "${String(fieldName)}"` : `"${title}.${String(fieldName)}"`;
    const val = object[fieldName];
    if (!Object.hasOwn(object, fieldName) && (isOpt ? val !== void 0 : expectedType !== "function")) {
      throw new TypeError(`${label} is invalid: expected own property`);
    }
    if (isOpt && val === void 0)
      return;
    const current = typeof val;
    if (current !== expectedType || val === null)
      throw new TypeError(`${label} is invalid: expected ${expectedType}, got ${current}`);
  }
  const iter = (f, isOpt) => Object.entries(f).forEach(([k, v]) => checkField(k, v, isOpt));
  iter(fields, false);
  iter(optFields, true);
}

// node_modules/@noble/curves/abstract/modular.js
var _0n2 = /* @__PURE__ */ BigInt(0);
var _1n2 = /* @__PURE__ */ BigInt(1);
var _2n = /* @__PURE__ */ BigInt(2);
var _3n = /* @__PURE__ */ BigInt(3);
var _4n = /* @__PURE__ */ BigInt(4);
var _5n = /* @__PURE__ */ BigInt(5);
var _7n = /* @__PURE__ */ BigInt(7);
var _8n = /* @__PURE__ */ BigInt(8);
var _9n = /* @__PURE__ */ BigInt(9);
var _15n = /* @__PURE__ */ BigInt(15);
var _16n = /* @__PURE__ */ BigInt(16);
var POW_WINDOWED_MIN = /* @__PURE__ */ BigInt("0x10000000000000000");
function mod(a, b) {
  if (b <= _0n2)
    throw new Error("mod: expected positive modulus, got " + b);
  const result = a % b;
  return result >= _0n2 ? result : b + result;
}
function pow(num, power, modulo) {
  if (modulo <= _1n2)
    throw new Error("pow: expected modulus > 1, got " + modulo);
  if (typeof power !== "bigint")
    throw new TypeError("invalid exponent: expected bigint, got " + typeof power);
  if (power < _0n2)
    throw new Error("invalid exponent, negatives unsupported");
  if (power === _0n2)
    return _1n2;
  if (power === _1n2)
    return num;
  let d = num % modulo;
  if (d < _0n2)
    d += modulo;
  if (power < POW_WINDOWED_MIN) {
    let p2 = _1n2;
    while (power > _0n2) {
      if (power & _1n2)
        p2 = p2 * d % modulo;
      d = d * d % modulo;
      power >>= _1n2;
    }
    return p2;
  }
  const digits2 = [];
  while (power > _0n2) {
    digits2.push(Number(power & _15n));
    power >>= _4n;
  }
  const table = new Array(16);
  table[0] = _1n2;
  table[1] = d;
  for (let i = 2; i < 16; i++)
    table[i] = table[i - 1] * d % modulo;
  let p = table[digits2[digits2.length - 1]];
  for (let w = digits2.length - 2; w >= 0; w--) {
    p = p * p % modulo;
    p = p * p % modulo;
    p = p * p % modulo;
    p = p * p % modulo;
    const digit = digits2[w];
    if (digit !== 0)
      p = p * table[digit] % modulo;
  }
  return p;
}
function pow2(x, power, modulo) {
  if (modulo <= _1n2)
    throw new Error("pow2: expected modulus > 1, got " + modulo);
  if (power < _0n2)
    throw new Error("pow2: expected non-negative exponent, got " + power);
  let res = x;
  while (power-- > _0n2) {
    res *= res;
    res %= modulo;
  }
  return res;
}
function invert(number2, modulo) {
  if (number2 === _0n2)
    throw new Error("invert: expected non-zero number");
  if (modulo <= _1n2)
    throw new Error("invert: expected modulus > 1, got " + modulo);
  let a = mod(number2, modulo);
  let b = modulo;
  let x = _0n2, u = _1n2;
  while (a !== _0n2) {
    const q = b / a;
    const r = b - a * q;
    const m = x - u * q;
    b = a, a = r, x = u, u = m;
  }
  const gcd = b;
  if (gcd !== _1n2)
    throw new Error("invert: does not exist");
  return mod(x, modulo);
}
function assertIsSquare(Fp2, root, n) {
  const F = Fp2;
  if (!F.eql(F.sqr(root), n))
    throw new Error("Cannot find square root");
}
function aoddModulus(order, fnName) {
  if ((order & _1n2) === _0n2)
    throw new Error(fnName + ": expected odd modulus, got " + order);
}
function sqrt3mod4(Fp2, n) {
  const F = Fp2;
  const p1div4 = (F.ORDER + _1n2) / _4n;
  const root = F.pow(n, p1div4);
  assertIsSquare(F, root, n);
  return root;
}
function sqrt5mod8(Fp2, n) {
  const F = Fp2;
  const p5div8 = (F.ORDER - _5n) / _8n;
  const n2 = F.mul(n, _2n);
  const v = F.pow(n2, p5div8);
  const nv = F.mul(n, v);
  const i = F.mul(F.mul(nv, _2n), v);
  const root = F.mul(nv, F.sub(i, F.ONE));
  assertIsSquare(F, root, n);
  return root;
}
function sqrt9mod16(P) {
  const Fp_ = Field(P);
  const tn = tonelliShanks(P);
  const c1 = tn(Fp_, Fp_.neg(Fp_.ONE));
  const c2 = tn(Fp_, c1);
  const c3 = tn(Fp_, Fp_.neg(c1));
  const c4 = (P + _7n) / _16n;
  return ((Fp2, n) => {
    const F = Fp2;
    let tv1 = F.pow(n, c4);
    let tv2 = F.mul(tv1, c1);
    const tv3 = F.mul(tv1, c2);
    const tv4 = F.mul(tv1, c3);
    const e1 = F.eql(F.sqr(tv2), n);
    const e2 = F.eql(F.sqr(tv3), n);
    tv1 = F.cmov(tv1, tv2, e1);
    tv2 = F.cmov(tv4, tv3, e2);
    const e3 = F.eql(F.sqr(tv2), n);
    const root = F.cmov(tv1, tv2, e3);
    assertIsSquare(F, root, n);
    return root;
  });
}
function tonelliShanks(P) {
  if (P < _3n)
    throw new Error("sqrt is not defined for small field");
  aoddModulus(P, "tonelliShanks");
  let Q = P - _1n2;
  let S = 0;
  while (Q % _2n === _0n2) {
    Q /= _2n;
    S++;
  }
  let Z = _2n;
  const _Fp = Field(P);
  while (FpLegendre(_Fp, Z) === 1) {
    if (Z++ > 1e3)
      throw new Error("Cannot find square root: probably non-prime P");
  }
  if (S === 1)
    return sqrt3mod4;
  let cc = _Fp.pow(Z, Q);
  const Q1div2 = (Q + _1n2) / _2n;
  return function tonelliSlow(Fp2, n) {
    const F = Fp2;
    if (F.is0(n))
      return n;
    if (FpLegendre(F, n) !== 1)
      throw new Error("Cannot find square root");
    let M = S;
    let c = F.mul(F.ONE, cc);
    let t = F.pow(n, Q);
    let R = F.pow(n, Q1div2);
    while (!F.eql(t, F.ONE)) {
      if (F.is0(t))
        throw new Error("Cannot find square root: probably non-prime P");
      let i = 1;
      let t_tmp = F.sqr(t);
      while (!F.eql(t_tmp, F.ONE)) {
        i++;
        t_tmp = F.sqr(t_tmp);
        if (i === M)
          throw new Error("Cannot find square root");
      }
      const exponent = _1n2 << BigInt(M - i - 1);
      const b = F.pow(c, exponent);
      M = i;
      c = F.sqr(b);
      t = F.mul(t, c);
      R = F.mul(R, b);
    }
    return R;
  };
}
function FpSqrt(P) {
  aoddModulus(P, "Fp.sqrt");
  if (P % _4n === _3n)
    return sqrt3mod4;
  if (P % _8n === _5n)
    return sqrt5mod8;
  if (P % _16n === _9n)
    return sqrt9mod16(P);
  return tonelliShanks(P);
}
var isNegativeLE = (num, modulo) => (mod(num, modulo) & _1n2) === _1n2;
var FIELD_FIELDS = [
  "create",
  "isValid",
  "is0",
  "neg",
  "inv",
  "sqrt",
  "sqr",
  "eql",
  "add",
  "sub",
  "mul",
  "pow",
  "div",
  "addN",
  "subN",
  "mulN",
  "sqrN"
];
function validateField(field) {
  aobject2(field, "field");
  if (typeof field.ORDER !== "bigint")
    throw new TypeError('param "ORDER" is invalid: expected bigint, got ' + typeof field.ORDER);
  asafenumber(field.BYTES, "BYTES");
  asafenumber(field.BITS, "BITS");
  for (const name of FIELD_FIELDS)
    afunction(field[name], "field." + name);
  if (field.BYTES < 1 || field.BITS < 1)
    throw new Error("invalid field: expected BYTES/BITS > 0");
  if (field.ORDER <= _1n2)
    throw new Error("invalid field: expected ORDER > 1, got " + field.ORDER);
  return field;
}
function FpInvertBatch(Fp2, nums, passZero = false) {
  validateField(Fp2);
  aarray(nums, "nums");
  abool(passZero, "passZero");
  const F = Fp2;
  const inverted = new Array(nums.length).fill(passZero ? F.ZERO : void 0);
  const multipliedAcc = nums.reduce((acc, num, i) => {
    if (F.is0(num))
      return acc;
    inverted[i] = acc;
    return F.mul(acc, num);
  }, F.ONE);
  const invertedAcc = F.inv(multipliedAcc);
  nums.reduceRight((acc, num, i) => {
    if (F.is0(num))
      return acc;
    inverted[i] = F.mul(acc, inverted[i]);
    return F.mul(acc, num);
  }, invertedAcc);
  return inverted;
}
function FpLegendre(Fp2, n) {
  validateField(Fp2);
  const F = Fp2;
  aoddModulus(F.ORDER, "FpLegendre");
  const p1mod2 = (F.ORDER - _1n2) / _2n;
  const powered = F.pow(n, p1mod2);
  const yes = F.eql(powered, F.ONE);
  const zero = F.eql(powered, F.ZERO);
  const no = F.eql(powered, F.neg(F.ONE));
  if (!yes && !zero && !no)
    throw new Error("invalid Legendre symbol result");
  return yes ? 1 : zero ? 0 : -1;
}
function nLength(n, nBitLength) {
  if (nBitLength !== void 0)
    anumber2(nBitLength);
  if (n <= _0n2)
    throw new Error("invalid n length: expected positive n, got " + n);
  if (nBitLength !== void 0 && nBitLength < 1)
    throw new Error("invalid n length: expected positive bit length, got " + nBitLength);
  const bits = bitLen(n);
  if (nBitLength !== void 0 && nBitLength < bits)
    throw new Error(`invalid n length: expected nBitLength (${nBitLength}) >= bitLen(n) (${bits})`);
  const _nBitLength = nBitLength !== void 0 ? nBitLength : bits;
  const nByteLength = Math.ceil(_nBitLength / 8);
  return { nBitLength: _nBitLength, nByteLength };
}
var FIELD_SQRT = /* @__PURE__ */ new WeakMap();
var _Field = class {
  ORDER;
  BITS;
  BYTES;
  isLE;
  ZERO = _0n2;
  ONE = _1n2;
  _lengths;
  _mod;
  constructor(ORDER2, opts = {}) {
    if (ORDER2 <= _1n2)
      throw new Error("invalid field: expected ORDER > 1, got " + ORDER2);
    let _nbitLength = void 0;
    this.isLE = false;
    if (opts != null && typeof opts === "object") {
      if (typeof opts.BITS === "number")
        _nbitLength = opts.BITS;
      if (typeof opts.sqrt === "function")
        Object.defineProperty(this, "sqrt", { value: opts.sqrt, enumerable: true });
      if (typeof opts.isLE === "boolean")
        this.isLE = opts.isLE;
      if (opts.allowedLengths)
        this._lengths = Object.freeze(opts.allowedLengths.slice());
      if (typeof opts.modFromBytes === "boolean")
        this._mod = opts.modFromBytes;
    }
    const { nBitLength, nByteLength } = nLength(ORDER2, _nbitLength);
    if (nByteLength > 2048)
      throw new Error("invalid field: expected ORDER of <= 2048 bytes");
    this.ORDER = ORDER2;
    this.BITS = nBitLength;
    this.BYTES = nByteLength;
    Object.freeze(this);
  }
  create(num) {
    return mod(num, this.ORDER);
  }
  isValid(num) {
    if (typeof num !== "bigint")
      throw new TypeError("invalid field element: expected bigint, got " + typeof num);
    return _0n2 <= num && num < this.ORDER;
  }
  is0(num) {
    return num === _0n2;
  }
  // is valid and invertible
  isValidNot0(num) {
    return !this.is0(num) && this.isValid(num);
  }
  isOdd(num) {
    return (num & _1n2) === _1n2;
  }
  neg(num) {
    return mod(-num, this.ORDER);
  }
  eql(lhs, rhs) {
    return lhs === rhs;
  }
  sqr(num) {
    return mod(num * num, this.ORDER);
  }
  add(lhs, rhs) {
    return mod(lhs + rhs, this.ORDER);
  }
  sub(lhs, rhs) {
    return mod(lhs - rhs, this.ORDER);
  }
  mul(lhs, rhs) {
    return mod(lhs * rhs, this.ORDER);
  }
  pow(num, power) {
    return pow(num, power, this.ORDER);
  }
  div(lhs, rhs) {
    return mod(lhs * invert(rhs, this.ORDER), this.ORDER);
  }
  // Same as above, but doesn't normalize
  sqrN(num) {
    return num * num;
  }
  addN(lhs, rhs) {
    return lhs + rhs;
  }
  subN(lhs, rhs) {
    return lhs - rhs;
  }
  mulN(lhs, rhs) {
    return lhs * rhs;
  }
  inv(num) {
    return invert(num, this.ORDER);
  }
  sqrt(num) {
    let sqrt = FIELD_SQRT.get(this);
    if (!sqrt)
      FIELD_SQRT.set(this, sqrt = FpSqrt(this.ORDER));
    return sqrt(this, num);
  }
  toBytes(num) {
    return this.isLE ? numberToBytesLE(num, this.BYTES) : numberToBytesBE(num, this.BYTES);
  }
  fromBytes(bytes, skipValidation = false) {
    abytes2(bytes);
    const { _lengths: allowedLengths, BYTES, isLE: isLE2, ORDER: ORDER2, _mod: modFromBytes } = this;
    if (allowedLengths) {
      if (bytes.length < 1 || !allowedLengths.includes(bytes.length) || bytes.length > BYTES) {
        throw new Error("Field.fromBytes: expected " + allowedLengths + " bytes, got " + bytes.length);
      }
      const padded = new Uint8Array(BYTES);
      padded.set(bytes, isLE2 ? 0 : padded.length - bytes.length);
      bytes = padded;
    }
    if (bytes.length !== BYTES)
      throw new Error("Field.fromBytes: expected " + BYTES + " bytes, got " + bytes.length);
    let scalar = isLE2 ? bytesToNumberLE(bytes) : bytesToNumberBE(bytes);
    if (modFromBytes)
      scalar = mod(scalar, ORDER2);
    if (!skipValidation) {
      if (!this.isValid(scalar))
        throw new Error("invalid field element: outside of range 0..ORDER");
    }
    return scalar;
  }
  // TODO: we don't need it here, move out to separate fn
  invertBatch(lst) {
    return FpInvertBatch(this, lst, true);
  }
  // We can't move this out because Fp6, Fp12 implement it
  // and it's unclear what to return in there.
  cmov(a, b, condition) {
    abool(condition, "condition");
    return condition ? b : a;
  }
};
function Field(ORDER2, opts = {}) {
  Object.freeze(_Field.prototype);
  return new _Field(ORDER2, opts);
}

// node_modules/@noble/curves/abstract/curve.js
var _0n3 = /* @__PURE__ */ BigInt(0);
var _1n3 = /* @__PURE__ */ BigInt(1);
var _4n2 = /* @__PURE__ */ BigInt(4);
var BLIND_BYTES = 16;
var BLIND_BITS = 128;
var FW_WINDOW = 5;
var TABLE_BYTES_MAX = /* @__PURE__ */ (() => 2 ** 31)();
function validatePointCons(Point2) {
  const pc = Point2;
  if (typeof pc !== "function")
    throw new TypeError('"Point" expected constructor, got type=' + typeof Point2);
  afunction(pc.fromAffine, "Point.fromAffine");
  afunction(pc.fromBytes, "Point.fromBytes");
  afunction(pc.fromHex, "Point.fromHex");
  aobject2(pc.BASE, "Point.BASE");
  aobject2(pc.ZERO, "Point.ZERO");
  validateField(pc.Fp);
  validateField(pc.Fn);
}
function normalizeZ(c, points) {
  validatePointCons(c);
  validateMSMPoints(points, c);
  const invertedZs = FpInvertBatch(c.Fp, points.map((p) => p.Z));
  return points.map((p, i) => c.fromAffine(p.toAffine(invertedZs[i])));
}
function validateW(W, bits, min2 = 1) {
  if (!Number.isSafeInteger(W) || W < min2 || W > bits)
    throw new Error("invalid window size, expected [" + min2 + ".." + bits + "], got W=" + W);
}
function validateTableBytes(numPoints, fpBytes) {
  const bytes = numPoints * (4 * fpBytes + 128);
  if (bytes > TABLE_BYTES_MAX)
    throw new Error("invalid window size: table would need ~" + Math.ceil(bytes / 2 ** 20) + " MiB, max " + TABLE_BYTES_MAX / 2 ** 20 + " MiB");
}
function probeRandomBytes(randomBytes3, length) {
  if (randomBytes3 === void 0)
    return void 0;
  afunction(randomBytes3, "randomBytes");
  try {
    const probe = randomBytes3(length);
    if (!isBytes2(probe) || probe.length !== length)
      return void 0;
  } catch {
    return void 0;
  }
  return randomBytes3;
}
function validateMSMPoints(points, c) {
  aarray(points, "points");
  points.forEach((p, i) => {
    if (!(p instanceof c))
      throw new Error("invalid point at index " + i);
  });
}
function validateMSMScalars(scalars, field, maxScalar) {
  if (!Array.isArray(scalars))
    throw new Error("array of scalars expected");
  scalars.forEach((s, i) => {
    const ok = maxScalar === void 0 ? field.isValid(s) : isPosBig(s) && s < maxScalar;
    if (!ok)
      throw new Error("invalid scalar at index " + i);
  });
}
var pointWindowSizes = /* @__PURE__ */ new WeakMap();
function getWindowSize(P) {
  return pointWindowSizes.get(P) || 1;
}
function oddMultiples(p, size) {
  const dbl = p.double();
  const t = [p];
  for (let j = 1; j < size; j++)
    t.push(t[j - 1].add(dbl));
  return t;
}
function wnafDigits(n, W) {
  const size = 2 ** W;
  const half = size / 2;
  const mask = BigInt(size - 1);
  const d = [];
  while (n > _0n3) {
    let w = 0;
    if (n & _1n3) {
      w = Number(n & mask);
      if (w >= half)
        w -= size;
      n -= BigInt(w);
    }
    d.push(w);
    n >>= _1n3;
  }
  return d;
}
function signedWindowDigits(n, W, windows) {
  const size = 2 ** W;
  const half = size / 2;
  const mask = BigInt(size - 1);
  const shiftBy = BigInt(W);
  const d = [];
  for (let w = 0; w < windows; w++) {
    let v = Number(n & mask);
    n >>= shiftBy;
    if (v > half) {
      v -= size;
      n += _1n3;
    }
    d.push(v);
  }
  if (n !== _0n3)
    throw new Error("invalid wnaf");
  return d;
}
function wnafWalk(zero, tables, digits2) {
  let max = 0;
  for (const d of digits2)
    max = Math.max(max, d.length);
  let acc = zero;
  for (let bit = max - 1; bit >= 0; bit--) {
    if (bit !== max - 1)
      acc = acc.double();
    for (let i = 0; i < digits2.length; i++) {
      const w = digits2[i][bit];
      if (w) {
        const item = tables[i][Math.abs(w) - 1 >> 1];
        acc = acc.add(w < 0 ? item.negate() : item);
      }
    }
  }
  return acc;
}
var ScalarMultiplier = class {
  Point;
  BASE;
  ZERO;
  randomBytes;
  wnafPrecomputes = /* @__PURE__ */ new WeakMap();
  baseCanBeBlinded;
  bits;
  // Parametrized with a given Point class (not individual point)
  constructor(Point2, randomBytes3) {
    validatePointCons(Point2);
    this.randomBytes = probeRandomBytes(randomBytes3, BLIND_BYTES);
    this.Point = Point2;
    this.BASE = Point2.BASE;
    this.ZERO = Point2.ZERO;
    this.bits = Point2.Fn.BITS;
  }
  /**
   * Creates a signed fixed-window wNAF precomputation table: for every window w, the
   * multiples `[1..2^(W−1)]⋅2^(w⋅W)⋅P`, flattened. All doublings are baked into the table,
   * so cached multiplication is additions-only. `windows = ceil(bits/W) + 1`: the extra
   * window absorbs the final carry of signed-digit recoding.
   * For a 256-bit curve and W=6, the table is 44⋅32 = 1408 points.
   * @param point - Point instance
   * @param W - window size
   * @param bits - scalar bitlength the table must cover
   */
  buildWnafTable(point, W, bits) {
    const windows = Math.ceil(bits / W) + 1;
    const half = 2 ** (W - 1);
    const comp = [];
    let base = point;
    for (let w = 0; w < windows; w++) {
      let acc = base;
      for (let i = 0; i < half; i++) {
        comp.push(acc);
        acc = acc.add(base);
      }
      base = comp[comp.length - 1].double();
    }
    return { W, bits, windows, comp };
  }
  /**
   * Implements ec multiplication using precomputed signed fixed-window wNAF tables.
   * Constant-time: fixed window count with one table addition per window — zero digits feed
   * the fake accumulator — and no doublings; the lookup scans the whole window slice.
   * Scalar bounds are validated by the public entry points ({@link ScalarMultiplier.mulCT},
   * {@link ScalarMultiplier.mulCTBlinded}, {@link ScalarMultiplier.mulUnsafe});
   * signedWindowDigits throws if `n` exceeds the table.
   * @returns real and fake (for const-time) points
   */
  wnafCachedCT(precomputes, n) {
    const { W, windows, comp } = precomputes;
    const half = 2 ** (W - 1);
    const digits2 = signedWindowDigits(n, W, windows);
    let p = this.ZERO;
    let f = this.BASE;
    for (let w = 0; w < windows; w++) {
      const digit = digits2[w];
      const start = w * half;
      const idx = Math.abs(digit) - 1;
      let sel = comp[start];
      for (let i = 1; i < half; i++)
        sel = i === idx ? comp[start + i] : sel;
      const neg = sel.negate();
      if (digit === 0)
        f = f.add(comp[start]);
      else
        p = p.add(digit < 0 ? neg : sel);
    }
    return { p, f };
  }
  // Cache key is point identity plus (W, bits); at most two entries exist per point (public-width
  // `Fn.BITS` and blinded `Fn.BITS + BLIND_BITS`). Callers must not reuse the same point with
  // incompatible `transform(...)` layouts and expect a separate cache entry.
  getWnafPrecomputes(W, point, bits, transform) {
    let entries = this.wnafPrecomputes.get(point);
    let comp = entries?.find((entry) => entry.W === W && entry.bits === bits);
    if (!comp) {
      comp = this.buildWnafTable(point, W, bits);
      if (typeof transform === "function")
        comp = { ...comp, comp: transform(comp.comp) };
      if (!entries) {
        entries = [];
        this.wnafPrecomputes.set(point, entries);
      }
      entries.push(comp);
    }
    return comp;
  }
  assertPoint(point) {
    if (!(point instanceof this.Point))
      throw new TypeError('"point" expected Point instance, got type=' + typeof point);
  }
  // Shared prologue of the constant-time entry points. Rejects scalar 0: in key/signature-style
  // callers a zero scalar means broken upstream plumbing, and concrete Points already reject it.
  // Uses inRange instead of Fn.isValidNot0: validateField() only certifies the arithmetic subset.
  validateMulInput(point, scalar) {
    this.assertPoint(point);
    if (!inRange(scalar, _1n3, this.Point.Fn.ORDER))
      throw new Error("invalid scalar");
  }
  // Constant-time dispatch shared by mulCT / mulCTBlinded. Un-precomputed points (W===1, e.g.
  // ECDH peer keys) skip building a throwaway cached table in favor of a small fixed-window
  // multiply. `n` must be < 2^bits.
  runCT(point, n, bits, transform) {
    const W = getWindowSize(point);
    if (W === 1)
      return this.fixedWindowCT(point, n, bits);
    return this.wnafCachedCT(this.getWnafPrecomputes(W, point, bits, transform), n);
  }
  mulCT(point, scalar, transform) {
    this.validateMulInput(point, scalar);
    return this.runCT(point, scalar, this.bits, transform);
  }
  mulCTBlinded(point, scalar, transform) {
    this.validateMulInput(point, scalar);
    if (this.randomBytes === void 0)
      throw new Error("randomBytes is required for scalar blinding");
    const bits = this.Point.Fn.BITS + BLIND_BITS;
    const blind = this.randomBytes(BLIND_BYTES);
    if (!isBytes2(blind) || blind.length !== BLIND_BYTES)
      throw new Error("randomBytes returned invalid byte array");
    blind[0] = blind[0] & 63 | 128;
    const n = scalar + bytesToNumberBE(blind) * this.Point.Fn.ORDER;
    return this.runCT(point, n, bits, transform);
  }
  /**
   * Constant-time multiplication `n*point` for an un-precomputed point, via a small fixed window.
   * A cached wNAF table only pays off when reused; a flat 2^FW_WINDOW table (`size-1` adds) is
   * far cheaper to build for a single use. The point-operation sequence is independent of `n`:
   * build the table, then per window exactly FW_WINDOW doublings, a data-oblivious scan over
   * every table entry, and one addition (adds the identity when the window digit is 0 — never
   * skipped).
   *
   * `n` must be `< 2^bits`. Assumes complete addition (adding the identity costs the same as any
   * add), which holds for the Weierstrass/Edwards point types used here. The table is left in
   * projective form (no normalizeZ): normalizing this small a table costs more than the
   * mixed-add savings it would buy for a single multiply.
   * @returns real point `p`; `f` duplicates it only to match {@link wnafCachedCT}'s return shape
   * (this path needs no fake accumulator — its op-count is already scalar-independent).
   */
  fixedWindowCT(point, n, bits) {
    const W = FW_WINDOW;
    const size = 1 << W;
    const mask = bitMask(W);
    const table = new Array(size);
    table[0] = this.ZERO;
    for (let i = 1; i < size; i++)
      table[i] = table[i - 1].add(point);
    const windows = Math.ceil(bits / W);
    let acc = this.ZERO;
    for (let window = windows - 1; window >= 0; window--) {
      if (window !== windows - 1)
        for (let d = 0; d < W; d++)
          acc = acc.double();
      const digit = Number(n >> BigInt(window * W) & mask);
      let sel = table[0];
      for (let i = 1; i < size; i++)
        sel = i === digit ? table[i] : sel;
      acc = acc.add(sel);
    }
    return { p: acc, f: acc };
  }
  shouldBlind(point, cofactor) {
    if (this.randomBytes === void 0)
      return false;
    if (cofactor === _1n3)
      return true;
    if (point !== this.BASE)
      return false;
    if (this.baseCanBeBlinded === void 0)
      this.baseCanBeBlinded = this.mulUnsafe(this.BASE, this.Point.Fn.ORDER).is0();
    return this.baseCanBeBlinded;
  }
  mulSecret(point, scalar, cofactor, transform) {
    return this.shouldBlind(point, cofactor) ? this.mulCTBlinded(point, scalar, transform) : this.mulCT(point, scalar, transform);
  }
  mulUnsafe(point, scalar, transform) {
    this.assertPoint(point);
    if (!isPosBig(scalar))
      throw new Error("invalid scalar");
    const W = getWindowSize(point);
    if (W === 1 || scalar >= this.Point.Fn.ORDER)
      return mulAddUnsafe(this.Point, [point], [scalar], true);
    const precomputes = this.getWnafPrecomputes(W, point, this.bits, transform);
    return this.wnafCachedCT(precomputes, scalar).p;
  }
  // Remembers the window size used for precomputed wNAF multiplication of the given point
  // and drops any previously built tables. Usually only the base point is precomputed.
  // W=1 resets the point to the un-precomputed (table-less) paths.
  // W is additionally capped so tables stay under ~2 GiB ({@link TABLE_BYTES_MAX}).
  setWindowSize(point, W) {
    this.assertPoint(point);
    validateW(W, this.bits);
    const windows = Math.ceil((this.bits + BLIND_BITS) / W) + 1;
    validateTableBytes(windows * 2 ** (W - 1), this.Point.Fp.BYTES);
    pointWindowSizes.set(point, W);
    this.wnafPrecomputes.delete(point);
  }
  // True when a window size is set: tables themselves are built lazily on first multiply.
  hasWindowSize(point) {
    return getWindowSize(point) !== 1;
  }
};
function mulAddUnsafe(c, points, scalars, allowOversized = false) {
  validatePointCons(c);
  validateMSMPoints(points, c);
  abool(allowOversized, "allowOversized");
  validateMSMScalars(scalars, c.Fn, allowOversized ? c.Fn.ORDER ** _4n2 : void 0);
  if (points.length !== scalars.length)
    throw new Error("arrays of points and scalars must have equal length");
  const tables = points.map((p) => oddMultiples(p, 4));
  const digits2 = scalars.map((n) => wnafDigits(n, 4));
  return wnafWalk(c.ZERO, tables, digits2);
}
function createField(order, field, isLE2) {
  if (field) {
    if (field.ORDER !== order)
      throw new Error("Field.ORDER must match order: Fp == p, Fn == n");
    validateField(field);
    return field;
  } else {
    return Field(order, { isLE: isLE2 });
  }
}
function createCurveFields(type, CURVE, curveOpts = {}, FpFnLE) {
  if (type !== "weierstrass" && type !== "edwards")
    throw new Error('expected curve type "weierstrass" or "edwards"');
  if (FpFnLE === void 0)
    FpFnLE = type === "edwards";
  if (!CURVE || typeof CURVE !== "object")
    throw new Error(`expected valid ${type} CURVE object`);
  validateObject(curveOpts);
  for (const p of ["p", "n", "h"]) {
    const val = CURVE[p];
    if (!(isPosBig(val) && val !== _0n3))
      throw new Error(`CURVE.${p} must be positive bigint`);
  }
  const Fp2 = createField(CURVE.p, curveOpts.Fp, FpFnLE);
  const Fn = createField(CURVE.n, curveOpts.Fn, FpFnLE);
  const _b = type === "weierstrass" ? "b" : "d";
  const params = ["Gx", "Gy", "a", _b];
  for (const p of params) {
    if (!Fp2.isValid(CURVE[p]))
      throw new Error(`CURVE.${p} must be valid field element of CURVE.Fp`);
  }
  CURVE = Object.freeze(Object.assign({}, CURVE));
  return { CURVE, Fp: Fp2, Fn };
}
function createKeygen(randomSecretKey, getPublicKey) {
  return function keygen(seed) {
    const secretKey = randomSecretKey(seed);
    return { secretKey, publicKey: getPublicKey(secretKey) };
  };
}

// node_modules/@noble/curves/abstract/edwards.js
var _0n4 = /* @__PURE__ */ BigInt(0);
var _1n4 = /* @__PURE__ */ BigInt(1);
var _2n2 = /* @__PURE__ */ BigInt(2);
var _4n3 = /* @__PURE__ */ BigInt(4);
var _8n2 = /* @__PURE__ */ BigInt(8);
function isEdValidXY(Fp2, CURVE, x, y) {
  const x2 = Fp2.sqr(x);
  const y2 = Fp2.sqr(y);
  const left = Fp2.add(Fp2.mul(CURVE.a, x2), y2);
  const right = Fp2.add(Fp2.ONE, Fp2.mul(CURVE.d, Fp2.mul(x2, y2)));
  return Fp2.eql(left, right);
}
function edwards(params, extraOpts = {}) {
  validateObject(extraOpts, {}, {}, "extraOpts");
  const opts = extraOpts;
  const validated = createCurveFields("edwards", params, opts, opts.FpFnLE);
  const { Fp: Fp2, Fn } = validated;
  let CURVE = validated.CURVE;
  const { h: cofactor } = CURVE;
  if (FpLegendre(Fp2, CURVE.a) !== 1)
    throw new Error("edwards: CURVE.a must be a square in Fp for complete addition formulas");
  if (FpLegendre(Fp2, CURVE.d) !== -1)
    throw new Error("edwards: CURVE.d must be a non-square in Fp for complete addition formulas");
  validateObject(opts, {}, { uvRatio: "function", randomBytes: "function" });
  const randomBytes3 = opts.randomBytes === void 0 ? randomBytes2 : opts.randomBytes;
  const MASK = _2n2 << BigInt(Fp2.BYTES * 8) - _1n4;
  function isOdd(n) {
    if (!Fp2.isOdd)
      throw new Error("Field does not have .isOdd()");
    return Fp2.isOdd(n);
  }
  const uvRatio2 = opts.uvRatio === void 0 ? (u, v) => {
    try {
      return { isValid: true, value: Fp2.sqrt(Fp2.div(u, v)) };
    } catch (e) {
      return { isValid: false, value: _0n4 };
    }
  } : opts.uvRatio;
  if (!isEdValidXY(Fp2, CURVE, CURVE.Gx, CURVE.Gy))
    throw new Error("bad curve params: generator point");
  const mulA = Fp2.eql(CURVE.a, Fp2.neg(Fp2.ONE)) ? (x) => Fp2.neg(x) : Fp2.eql(CURVE.a, Fp2.ONE) ? (x) => x : (x) => Fp2.mul(CURVE.a, x);
  function acoord(title, n, banZero = false) {
    const min2 = banZero ? _1n4 : _0n4;
    aInRange("coordinate " + title, n, min2, MASK);
    return n;
  }
  function aedpoint(other) {
    if (!(other instanceof Point2))
      throw new Error("EdwardsPoint expected");
  }
  class Point2 {
    static BASE = new Point2(CURVE.Gx, CURVE.Gy, Fp2.ONE, Fp2.mul(CURVE.Gx, CURVE.Gy));
    static ZERO = new Point2(Fp2.ZERO, Fp2.ONE, Fp2.ONE, Fp2.ZERO);
    static Fp = Fp2;
    static Fn = Fn;
    X;
    Y;
    Z;
    T;
    constructor(X, Y, Z, T) {
      this.X = acoord("x", X);
      this.Y = acoord("y", Y);
      this.Z = acoord("z", Z, true);
      this.T = acoord("t", T);
      Object.freeze(this);
    }
    static CURVE() {
      return CURVE;
    }
    /**
     * Create one extended Edwards point from affine coordinates.
     * Does NOT validate that the point is on-curve or torsion-free.
     * Use `.assertValidity()` on adversarial inputs.
     */
    static fromAffine(p) {
      if (p instanceof Point2)
        throw new Error("extended point not allowed");
      const { x, y } = p || {};
      acoord("x", x);
      acoord("y", y);
      return new Point2(x, y, Fp2.ONE, Fp2.mul(x, y));
    }
    // Uses algo from RFC8032 5.1.3.
    static fromBytes(bytes, zip215 = false) {
      const len = Fp2.BYTES;
      const { a, d } = CURVE;
      bytes = copyBytes2(abytes2(bytes, len, "point"));
      abool(zip215, "zip215");
      const normed = copyBytes2(bytes);
      const lastByte = bytes[len - 1];
      normed[len - 1] = lastByte & ~128;
      const y = bytesToNumberLE(normed);
      const max = zip215 ? MASK : Fp2.ORDER;
      aInRange("point.y", y, _0n4, max);
      const y2 = Fp2.sqr(y);
      const u = Fp2.sub(y2, Fp2.ONE);
      const v = Fp2.sub(Fp2.mulN(d, y2), a);
      let { isValid, value: x } = uvRatio2(u, v);
      if (!isValid)
        throw new Error("bad point: invalid y coordinate");
      const isXOdd = isOdd(x);
      const isLastByteOdd = (lastByte & 128) !== 0;
      if (!zip215 && Fp2.is0(x) && isLastByteOdd)
        throw new Error("bad point: x=0 and x_0=1");
      if (isLastByteOdd !== isXOdd)
        x = Fp2.neg(x);
      return Point2.fromAffine({ x, y });
    }
    static fromHex(hex2, zip215 = false) {
      return Point2.fromBytes(hexToBytes2(hex2), zip215);
    }
    get x() {
      return this.toAffine().x;
    }
    get y() {
      return this.toAffine().y;
    }
    precompute(windowSize = 6, isLazy = true) {
      wnaf.setWindowSize(this, windowSize);
      if (!isLazy)
        this.multiply(_2n2);
      return this;
    }
    // Useful in fromAffine() - not for fromBytes(), which always created valid points.
    assertValidity() {
      const p = this;
      const { a, d } = CURVE;
      if (p.is0())
        throw new Error("bad point: ZERO");
      const { X, Y, Z, T } = p;
      const X2 = Fp2.sqr(X);
      const Y2 = Fp2.sqr(Y);
      const Z2 = Fp2.sqr(Z);
      const Z4 = Fp2.sqr(Z2);
      const aX2 = Fp2.mul(X2, a);
      const left = Fp2.mul(Fp2.add(aX2, Y2), Z2);
      const right = Fp2.add(Z4, Fp2.mul(d, Fp2.mul(X2, Y2)));
      if (!Fp2.eql(left, right))
        throw new Error("bad point: equation left != right (1)");
      const XY = Fp2.mul(X, Y);
      const ZT = Fp2.mul(Z, T);
      if (!Fp2.eql(XY, ZT))
        throw new Error("bad point: equation left != right (2)");
    }
    // Compare one point to another.
    equals(other) {
      aedpoint(other);
      const { X: X1, Y: Y1, Z: Z1 } = this;
      const { X: X2, Y: Y2, Z: Z2 } = other;
      const X1Z2 = Fp2.mul(X1, Z2);
      const X2Z1 = Fp2.mul(X2, Z1);
      const Y1Z2 = Fp2.mul(Y1, Z2);
      const Y2Z1 = Fp2.mul(Y2, Z1);
      return Fp2.eql(X1Z2, X2Z1) && Fp2.eql(Y1Z2, Y2Z1);
    }
    is0() {
      return this.equals(Point2.ZERO);
    }
    negate() {
      return new Point2(Fp2.neg(this.X), this.Y, this.Z, Fp2.neg(this.T));
    }
    // Fast algo for doubling Extended Point.
    // https://hyperelliptic.org/EFD/g1p/auto-twisted-extended.html#doubling-dbl-2008-hwcd
    // Cost: 4M + 4S + 1*a + 6add + 1*2.
    double() {
      const { X: X1, Y: Y1, Z: Z1 } = this;
      const A = Fp2.sqr(X1);
      const B = Fp2.sqr(Y1);
      const C = Fp2.mul(Fp2.sqr(Z1), _2n2);
      const D = mulA(A);
      const x1y1 = Fp2.addN(X1, Y1);
      const E = Fp2.sub(Fp2.subN(Fp2.sqr(x1y1), A), B);
      const G = Fp2.addN(D, B);
      const F = Fp2.subN(G, C);
      const H = Fp2.subN(D, B);
      const X3 = Fp2.mul(E, F);
      const Y3 = Fp2.mul(G, H);
      const T3 = Fp2.mul(E, H);
      const Z3 = Fp2.mul(F, G);
      return new Point2(X3, Y3, Z3, T3);
    }
    // Fast algo for adding 2 Extended Points.
    // https://hyperelliptic.org/EFD/g1p/auto-twisted-extended.html#addition-add-2008-hwcd
    // Cost: 9M + 1*a + 1*d + 7add.
    add(other) {
      aedpoint(other);
      const { d } = CURVE;
      const { X: X1, Y: Y1, Z: Z1, T: T1 } = this;
      const { X: X2, Y: Y2, Z: Z2, T: T2 } = other;
      const A = Fp2.mul(X1, X2);
      const B = Fp2.mul(Y1, Y2);
      const C = Fp2.mul(Fp2.mulN(T1, d), T2);
      const D = Fp2.mul(Z1, Z2);
      const E = Fp2.sub(Fp2.subN(Fp2.mulN(Fp2.addN(X1, Y1), Fp2.addN(X2, Y2)), A), B);
      const F = Fp2.subN(D, C);
      const G = Fp2.addN(D, C);
      const H = Fp2.sub(B, mulA(A));
      const X3 = Fp2.mul(E, F);
      const Y3 = Fp2.mul(G, H);
      const T3 = Fp2.mul(E, H);
      const Z3 = Fp2.mul(F, G);
      return new Point2(X3, Y3, Z3, T3);
    }
    subtract(other) {
      aedpoint(other);
      return this.add(other.negate());
    }
    // Constant-time multiplication.
    multiply(scalar) {
      if (!Fn.isValidNot0(scalar))
        throw new RangeError("invalid scalar: expected 1 <= sc < curve.n");
      const { p, f } = wnaf.mulSecret(this, scalar, cofactor, normalize);
      return normalize([p, f])[0];
    }
    // Non-constant-time multiplication. Uses double-and-add algorithm.
    // It's faster, but should only be used when you don't care about
    // an exposed private key e.g. sig verification.
    // Keeps the same subgroup-scalar contract: 0 is allowed for public-scalar callers, but
    // n and larger values are rejected instead of being reduced mod n to the identity point.
    multiplyUnsafe(scalar) {
      if (!Fn.isValid(scalar))
        throw new RangeError("invalid scalar: expected 0 <= sc < curve.n");
      if (scalar === _0n4)
        return Point2.ZERO;
      if (this.is0() || scalar === _1n4)
        return this;
      return wnaf.mulUnsafe(this, scalar, normalize);
    }
    // Checks if point is of small order.
    // If you add something to small order point, you will have "dirty"
    // point with torsion component.
    // Clears cofactor and checks if the result is 0.
    isSmallOrder() {
      return this.clearCofactor().is0();
    }
    // Multiplies point by curve order and checks if the result is 0.
    // Returns `false` is the point is dirty.
    isTorsionFree() {
      return wnaf.mulUnsafe(this, CURVE.n).is0();
    }
    // Converts Extended point to default (x, y) coordinates.
    // Can accept precomputed Z^-1 - for example, from invertBatch.
    toAffine(invertedZ) {
      const p = this;
      let iz = invertedZ;
      if (iz != null && typeof iz !== "bigint")
        throw new TypeError('"invertedZ" expected bigint, got type=' + typeof iz);
      const { X, Y, Z } = p;
      const is0 = p.is0();
      if (iz == null)
        iz = is0 ? Fp2.create(_8n2) : Fp2.inv(Z);
      const x = Fp2.mul(X, iz);
      const y = Fp2.mul(Y, iz);
      const zz = Fp2.mul(Z, iz);
      if (is0)
        return { x: Fp2.ZERO, y: Fp2.ONE };
      if (!Fp2.eql(zz, Fp2.ONE))
        throw new Error("invZ was invalid");
      return { x, y };
    }
    clearCofactor() {
      if (cofactor === _1n4)
        return this;
      if (cofactor === _2n2)
        return this.double();
      if (cofactor === _4n3)
        return this.double().double();
      if (cofactor === _8n2)
        return this.double().double().double();
      return this.multiplyUnsafe(cofactor);
    }
    toBytes() {
      const { x, y } = this.toAffine();
      const bytes = Fp2.toBytes(y);
      bytes[bytes.length - 1] |= isOdd(x) ? 128 : 0;
      return bytes;
    }
    toHex() {
      return bytesToHex2(this.toBytes());
    }
    toString() {
      return `<Point ${this.is0() ? "ZERO" : this.toHex()}>`;
    }
  }
  const normalize = (points) => normalizeZ(Point2, points);
  const wnaf = new ScalarMultiplier(Point2, randomBytes3);
  if (wnaf.bits >= 6)
    Point2.BASE.precompute(6);
  Object.freeze(Point2.prototype);
  Object.freeze(Point2);
  return Point2;
}
function eddsa(Point2, cHash, eddsaOpts = {}) {
  validatePointCons(Point2);
  if (typeof cHash !== "function")
    throw new Error('"hash" function param is required');
  const hash = cHash;
  const opts = eddsaOpts;
  validateObject(opts, {}, {
    adjustScalarBytes: "function",
    randomBytes: "function",
    domain: "function",
    prehash: "function",
    zip215: "boolean",
    mapToCurve: "function",
    toMontgomery: "function",
    toMontgomerySecret: "function"
  });
  const { prehash } = opts;
  const { BASE, Fp: Fp2, Fn } = Point2;
  const outputLen = hash.outputLen;
  const expectedLen = 2 * Fp2.BYTES;
  if (outputLen !== void 0) {
    asafenumber(outputLen, "hash.outputLen");
    if (outputLen !== expectedLen)
      throw new Error(`hash.outputLen must be ${expectedLen}, got ${outputLen}`);
  }
  const randomBytes3 = opts.randomBytes === void 0 ? randomBytes2 : opts.randomBytes;
  const toMontgomery2 = opts.toMontgomery;
  const toMontgomerySecret2 = opts.toMontgomerySecret;
  const adjustScalarBytes2 = opts.adjustScalarBytes === void 0 ? (bytes) => bytes : opts.adjustScalarBytes;
  const domain = opts.domain === void 0 ? (data, ctx, phflag) => {
    abool(phflag, "phflag");
    if (ctx.length || phflag)
      throw new Error("Contexts/pre-hash are not supported");
    return data;
  } : opts.domain;
  function modN_LE(hash2) {
    return Fn.create(bytesToNumberLE(hash2));
  }
  function getPrivateScalar(key2) {
    const len = lengths.secretKey;
    abytes2(key2, lengths.secretKey, "secretKey");
    const hashed = abytes2(hash(key2), 2 * len, "hashedSecretKey");
    const head = adjustScalarBytes2(hashed.slice(0, len));
    const prefix = hashed.slice(len, 2 * len);
    const scalar = modN_LE(head);
    return { head, prefix, scalar };
  }
  function getExtendedPublicKey(secretKey) {
    const { head, prefix, scalar } = getPrivateScalar(secretKey);
    const point = BASE.multiply(scalar);
    const pointBytes = point.toBytes();
    return { head, prefix, scalar, point, pointBytes };
  }
  function getPublicKey(secretKey) {
    return getExtendedPublicKey(secretKey).pointBytes;
  }
  function hashDomainToScalar(context = Uint8Array.of(), ...msgs) {
    const msg = concatBytes2(...msgs);
    return modN_LE(hash(domain(msg, abytes2(context, void 0, "context"), !!prehash)));
  }
  function sign(msg, secretKey, options = {}) {
    validateObject(options, {}, {}, "options");
    msg = copyBytes2(abytes2(msg, void 0, "message"));
    if (prehash)
      msg = prehash(msg);
    const { prefix, scalar, pointBytes } = getExtendedPublicKey(secretKey);
    const r = hashDomainToScalar(options.context, prefix, msg);
    const R = BASE.multiply(r).toBytes();
    const k = hashDomainToScalar(options.context, R, pointBytes, msg);
    const s = Fn.create(r + k * scalar);
    if (!Fn.isValid(s))
      throw new Error("sign failed: invalid s");
    const rs = concatBytes2(R, Fn.toBytes(s));
    return abytes2(rs, lengths.signature, "result");
  }
  const verifyOpts = {
    zip215: opts.zip215
  };
  function verify2(sig, msg, publicKey, options = verifyOpts) {
    validateObject(options);
    const { context } = options;
    const zip215 = options.zip215 === void 0 ? !!verifyOpts.zip215 : options.zip215;
    const len = lengths.signature;
    sig = abytes2(sig, len, "signature");
    msg = abytes2(msg, void 0, "message");
    publicKey = abytes2(publicKey, lengths.publicKey, "publicKey");
    if (zip215 !== void 0)
      abool(zip215, "zip215");
    if (prehash)
      msg = prehash(msg);
    const mid = len / 2;
    const r = sig.subarray(0, mid);
    const s = bytesToNumberLE(sig.subarray(mid, len));
    let A, R, SB;
    try {
      A = Point2.fromBytes(publicKey, zip215);
      R = Point2.fromBytes(r, zip215);
      SB = BASE.multiplyUnsafe(s);
    } catch (error) {
      return false;
    }
    if (!zip215 && A.isSmallOrder())
      return false;
    const k = hashDomainToScalar(context, r, publicKey, msg);
    const RkA = R.add(A.multiplyUnsafe(k));
    return RkA.subtract(SB).clearCofactor().is0();
  }
  const _size = Fp2.BYTES;
  const lengths = {
    secretKey: _size,
    publicKey: _size,
    signature: 2 * _size,
    seed: _size
  };
  function randomSecretKey(seed) {
    seed = seed === void 0 ? randomBytes3(lengths.seed) : seed;
    return abytes2(seed, lengths.seed, "seed");
  }
  function isValidSecretKey(key2) {
    return isBytes2(key2) && key2.length === lengths.secretKey;
  }
  function isValidPublicKey(key2, zip215) {
    try {
      return !!Point2.fromBytes(key2, zip215 === void 0 ? verifyOpts.zip215 : zip215);
    } catch (error) {
      return false;
    }
  }
  const utils = {
    getExtendedPublicKey,
    randomSecretKey,
    isValidSecretKey,
    isValidPublicKey,
    /** Converts an Edwards public key to a companion Montgomery public key. */
    toMontgomery(publicKey) {
      if (toMontgomery2 === void 0)
        throw new Error("Montgomery conversion is not supported for this curve");
      return toMontgomery2(Point2.fromBytes(publicKey));
    },
    toMontgomerySecret(secretKey) {
      if (toMontgomerySecret2 === void 0)
        throw new Error("Montgomery conversion is not supported for this curve");
      return toMontgomerySecret2(secretKey);
    }
  };
  Object.freeze(lengths);
  Object.freeze(utils);
  return Object.freeze({
    keygen: createKeygen(randomSecretKey, getPublicKey),
    getPublicKey,
    sign,
    verify: verify2,
    utils,
    Point: Point2,
    lengths
  });
}

// node_modules/@noble/curves/ed25519.js
var _1n5 = /* @__PURE__ */ BigInt(1);
var _2n3 = /* @__PURE__ */ BigInt(2);
var _5n2 = /* @__PURE__ */ BigInt(5);
var _8n3 = /* @__PURE__ */ BigInt(8);
var ed25519_CURVE_p = /* @__PURE__ */ BigInt("0x7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffed");
var ed25519_CURVE = /* @__PURE__ */ (() => ({
  p: ed25519_CURVE_p,
  n: BigInt("0x1000000000000000000000000000000014def9dea2f79cd65812631a5cf5d3ed"),
  h: _8n3,
  a: BigInt("0x7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffec"),
  d: BigInt("0x52036cee2b6ffe738cc740797779e89800700a4d4141d8ab75eb4dca135978a3"),
  Gx: BigInt("0x216936d3cd6e53fec0a4e231fdd6dc5c692cc7609525a7b2c9562d608f25d51a"),
  Gy: BigInt("0x6666666666666666666666666666666666666666666666666666666666666658")
}))();
function ed25519_pow_2_252_3(x) {
  const _10n = BigInt(10), _20n = BigInt(20), _40n = BigInt(40), _80n = BigInt(80);
  const P = ed25519_CURVE_p;
  const x2 = x * x % P;
  const b2 = x2 * x % P;
  const b42 = pow2(b2, _2n3, P) * b2 % P;
  const b5 = pow2(b42, _1n5, P) * x % P;
  const b10 = pow2(b5, _5n2, P) * b5 % P;
  const b20 = pow2(b10, _10n, P) * b10 % P;
  const b40 = pow2(b20, _20n, P) * b20 % P;
  const b80 = pow2(b40, _40n, P) * b40 % P;
  const b160 = pow2(b80, _80n, P) * b80 % P;
  const b240 = pow2(b160, _80n, P) * b80 % P;
  const b250 = pow2(b240, _10n, P) * b10 % P;
  const pow_p_5_8 = pow2(b250, _2n3, P) * x % P;
  return { pow_p_5_8, b2 };
}
function adjustScalarBytes(bytes) {
  bytes[0] &= 248;
  bytes[31] &= 127;
  bytes[31] |= 64;
  return bytes;
}
var ED25519_SQRT_M1 = /* @__PURE__ */ BigInt("19681161376707505956807079304988542015446066515923890162744021073123829784752");
function uvRatio(u, v) {
  const P = ed25519_CURVE_p;
  const v3 = mod(v * v * v, P);
  const v7 = mod(v3 * v3 * v, P);
  const pow3 = ed25519_pow_2_252_3(u * v7).pow_p_5_8;
  let x = mod(u * v3 * pow3, P);
  const vx2 = mod(v * x * x, P);
  const root1 = x;
  const root2 = mod(x * ED25519_SQRT_M1, P);
  const useRoot1 = vx2 === u;
  const useRoot2 = vx2 === mod(-u, P);
  const noRoot = vx2 === mod(-u * ED25519_SQRT_M1, P);
  if (useRoot1)
    x = root1;
  if (useRoot2 || noRoot)
    x = root2;
  if (isNegativeLE(x, P))
    x = mod(-x, P);
  return { isValid: useRoot1 || useRoot2, value: x };
}
var ed25519_Point = /* @__PURE__ */ edwards(ed25519_CURVE, { uvRatio });
var Fp = /* @__PURE__ */ (() => ed25519_Point.Fp)();
function toMontgomery(point) {
  const { y } = point;
  return Fp.toBytes(Fp.div(_1n5 + y, _1n5 - y));
}
function toMontgomerySecret(secretKey) {
  const size = ed25519_Point.Fp.BYTES;
  abytes(secretKey, size);
  return adjustScalarBytes(sha512(secretKey.subarray(0, size))).subarray(0, size);
}
function ed(opts) {
  return eddsa(ed25519_Point, sha512, Object.assign({ adjustScalarBytes, toMontgomery, toMontgomerySecret, zip215: true }, opts));
}
var ed25519 = /* @__PURE__ */ ed({});

// src/ed25519.ts
var { Point } = ed25519;
var ORDER = Point.Fn.ORDER;
function number(bytes) {
  let value = 0n;
  for (let i = bytes.length - 1; i >= 0; i--) value = value << 8n | BigInt(bytes[i]);
  return value;
}
function verify(key2, message, signature) {
  if (key2.length !== 32 || signature.length !== 64) return false;
  const nonceBytes = signature.subarray(0, 32);
  const s = number(signature.subarray(32));
  if (s >= ORDER) return false;
  try {
    const point = Point.fromBytes(key2, true);
    const k = number(sha512(concat(nonceBytes, key2, message))) % ORDER;
    const ofBase = s === 0n ? Point.ZERO : Point.BASE.multiply(s);
    const nonce = ofBase.subtract(k === 0n ? Point.ZERO : point.multiplyUnsafe(k));
    return !point.isSmallOrder() && !nonce.isSmallOrder() && equal(nonce.toBytes(), nonceBytes);
  } catch {
    return false;
  }
}

// src/form.ts
var FORMAT = 1;
var KEYS_MAX = 16;
var Refusal = class extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
  kind;
  name = "Refusal";
};
function readFile(bytes, magic, what, bytesMax, read2) {
  try {
    if (bytes.length > bytesMax) throw new Malformed(`it is larger than ${bytesMax} bytes`);
    const reader = new Reader(bytes);
    if (compare(reader.take(7), utf8(magic)) !== 0) throw new Malformed("it begins otherwise");
    const format = reader.u8();
    if (format !== FORMAT) throw new Malformed(`its format is ${format}, and this program knows ${FORMAT}`);
    const value = read2(reader);
    reader.finish();
    return value;
  } catch (error) {
    if (error instanceof Malformed) throw new Refusal("Malformed", `not a ${what}: ${error.message}`);
    throw error;
  }
}
function readRole(reader) {
  const keys = ascending(reader, reader.u32(), () => reader.take(32), (key2) => key2);
  const threshold = reader.u16();
  if (keys.length === 0 || keys.length > KEYS_MAX) throw new Malformed(`it has ${keys.length} keys`);
  if (threshold === 0 || threshold > keys.length) throw new Malformed(`it asks for ${threshold} of ${keys.length} signatures`);
  return { keys, threshold };
}
function readSigned(reader, domain, read2) {
  const from = reader.at;
  const value = read2(reader);
  const signedBytes = concat(Uint8Array.of(FORMAT), reader.since(from));
  const one = () => ({ key: reader.take(32), signature: reader.take(64) });
  const signatures = ascending(reader, reader.u32(), one, (entry) => entry.key);
  return { value, digest: digest(WELL_KNOWN, domain, signedBytes), signatures };
}
function ascending(reader, count, read2, key2) {
  const items = [];
  for (let i = 0; i < count; i++) {
    if (reader.left === 0) throw new Malformed("it ends early");
    const item = read2();
    const before = items.at(-1);
    if (before !== void 0 && compare(key2(before), key2(item)) >= 0) throw new Malformed("keys are out of order");
    items.push(item);
  }
  return items;
}
var has = (role, key2) => role.keys.some((known2) => compare(known2, key2) === 0);
function countOf(role, keys) {
  return keys.filter((key2) => has(role, key2)).length;
}
function signers(what, signed, roles) {
  const stranger = signed.signatures.find(({ key: key2 }) => !roles.some((role) => has(role, key2)));
  if (stranger) {
    throw new Refusal("Stranger", `the ${what} is signed by a key that may not sign it: ${fingerprint(stranger.key)}`);
  }
  for (const { key: key2, signature } of signed.signatures) {
    if (!verify(key2, signed.digest, signature)) {
      const whose2 = fingerprint(key2);
      throw new Refusal("False", `the ${what} does not fit the signature of ${whose2}: it was altered or forged`);
    }
  }
  return signed.signatures.map(({ key: key2 }) => key2);
}
function check(what, signed, roles) {
  const keys = signers(what, signed, roles.map(([, role]) => role));
  for (const [whose2, role] of roles) {
    if (countOf(role, keys) < role.threshold) {
      const count = countOf(role, keys);
      throw new Refusal("TooFew", `the ${what} is signed by ${count} of the ${role.threshold} keys needed of ${whose2}`);
    }
  }
}
function fingerprint(key2) {
  const name = utf8("ssh-ed25519");
  const bytes = concat(Uint8Array.of(0, 0, 0, name.length), name, Uint8Array.of(0, 0, 0, key2.length), key2);
  return "SHA256:" + btoa(String.fromCharCode(...sha256(bytes))).replace(/=+$/, "");
}

// src/moment.ts
var LATEST_S = 253402300799n;
function moment(seconds) {
  if (seconds > LATEST_S || seconds < 0n) return "a time outside of the years 1970 to 9999";
  return new Date(Number(seconds) * 1e3).toISOString().slice(0, 19).replace("T", " ") + " UTC";
}
function span(seconds) {
  const [count, unit] = seconds < 120n ? [seconds, "second"] : seconds < 7200n ? [seconds / 60n, "minute"] : seconds < 172800n ? [seconds / 3600n, "hour"] : [seconds / 86400n, "day"];
  return `${count} ${unit}${count === 1n ? "" : "s"}`;
}

// node_modules/fzstd/esm/index.mjs
var ab = ArrayBuffer;
var u82 = Uint8Array;
var u16 = Uint16Array;
var i16 = Int16Array;
var i32 = Int32Array;
var slc = function(v, s, e) {
  if (u82.prototype.slice)
    return u82.prototype.slice.call(v, s, e);
  if (s == null || s < 0)
    s = 0;
  if (e == null || e > v.length)
    e = v.length;
  var n = new u82(e - s);
  n.set(v.subarray(s, e));
  return n;
};
var fill = function(v, n, s, e) {
  if (u82.prototype.fill)
    return u82.prototype.fill.call(v, n, s, e);
  if (s == null || s < 0)
    s = 0;
  if (e == null || e > v.length)
    e = v.length;
  for (; s < e; ++s)
    v[s] = n;
  return v;
};
var cpw = function(v, t, s, e) {
  if (u82.prototype.copyWithin)
    return u82.prototype.copyWithin.call(v, t, s, e);
  if (s == null || s < 0)
    s = 0;
  if (e == null || e > v.length)
    e = v.length;
  while (s < e) {
    v[t++] = v[s++];
  }
};
var ec = [
  "invalid zstd data",
  "window size too large (>2046MB)",
  "invalid block type",
  "FSE accuracy too high",
  "match distance too far back",
  "unexpected EOF"
];
var err = function(ind, msg, nt) {
  var e = new Error(msg || ec[ind]);
  e.code = ind;
  if (Error.captureStackTrace)
    Error.captureStackTrace(e, err);
  if (!nt)
    throw e;
  return e;
};
var rb = function(d, b, n) {
  var i = 0, o = 0;
  for (; i < n; ++i)
    o |= d[b++] << (i << 3);
  return o;
};
var b4 = function(d, b) {
  return (d[b] | d[b + 1] << 8 | d[b + 2] << 16 | d[b + 3] << 24) >>> 0;
};
var rzfh = function(dat, w) {
  var n3 = dat[0] | dat[1] << 8 | dat[2] << 16;
  if (n3 == 3126568 && dat[3] == 253) {
    var flg = dat[4];
    var ss = flg >> 5 & 1, cc = flg >> 2 & 1, df = flg & 3, fcf = flg >> 6;
    if (flg & 8)
      err(0);
    var bt = 6 - ss;
    var db = df == 3 ? 4 : df;
    var di = rb(dat, bt, db);
    bt += db;
    var fsb = fcf ? 1 << fcf : ss;
    var fss = rb(dat, bt, fsb) + (fcf == 1 && 256);
    var ws = fss;
    if (!ss) {
      var wb = 1 << 10 + (dat[5] >> 3);
      ws = wb + (wb >> 3) * (dat[5] & 7);
    }
    if (ws > 2145386496)
      err(1);
    var buf = new u82((w == 1 ? fss || ws : w ? 0 : ws) + 12);
    buf[0] = 1, buf[4] = 4, buf[8] = 8;
    return {
      b: bt + fsb,
      y: 0,
      l: 0,
      d: di,
      w: w && w != 1 ? w : buf.subarray(12),
      e: ws,
      o: new i32(buf.buffer, 0, 3),
      u: fss,
      c: cc,
      m: Math.min(131072, ws)
    };
  } else if ((n3 >> 4 | dat[3] << 20) == 25481893) {
    return b4(dat, 4) + 8;
  }
  err(0);
};
var msb = function(val) {
  var bits = 0;
  for (; 1 << bits <= val; ++bits)
    ;
  return bits - 1;
};
var rfse = function(dat, bt, mal) {
  var tpos = (bt << 3) + 4;
  var al = (dat[bt] & 15) + 5;
  if (al > mal)
    err(3);
  var sz = 1 << al;
  var probs = sz, sym = -1, re = -1, i = -1, ht = sz;
  var buf = new ab(512 + (sz << 2));
  var freq = new i16(buf, 0, 256);
  var dstate = new u16(buf, 0, 256);
  var nstate = new u16(buf, 512, sz);
  var bb1 = 512 + (sz << 1);
  var syms = new u82(buf, bb1, sz);
  var nbits = new u82(buf, bb1 + sz);
  while (sym < 255 && probs > 0) {
    var bits = msb(probs + 1);
    var cbt = tpos >> 3;
    var msk = (1 << bits + 1) - 1;
    var val = (dat[cbt] | dat[cbt + 1] << 8 | dat[cbt + 2] << 16) >> (tpos & 7) & msk;
    var msk1fb = (1 << bits) - 1;
    var msv = msk - probs - 1;
    var sval = val & msk1fb;
    if (sval < msv)
      tpos += bits, val = sval;
    else {
      tpos += bits + 1;
      if (val > msk1fb)
        val -= msv;
    }
    freq[++sym] = --val;
    if (val == -1) {
      probs += val;
      syms[--ht] = sym;
    } else
      probs -= val;
    if (!val) {
      do {
        var rbt = tpos >> 3;
        re = (dat[rbt] | dat[rbt + 1] << 8) >> (tpos & 7) & 3;
        tpos += 2;
        sym += re;
      } while (re == 3);
    }
  }
  if (sym > 255 || probs)
    err(0);
  var sympos = 0;
  var sstep = (sz >> 1) + (sz >> 3) + 3;
  var smask = sz - 1;
  for (var s = 0; s <= sym; ++s) {
    var sf = freq[s];
    if (sf < 1) {
      dstate[s] = -sf;
      continue;
    }
    for (i = 0; i < sf; ++i) {
      syms[sympos] = s;
      do {
        sympos = sympos + sstep & smask;
      } while (sympos >= ht);
    }
  }
  if (sympos)
    err(0);
  for (i = 0; i < sz; ++i) {
    var ns = dstate[syms[i]]++;
    var nb = nbits[i] = al - msb(ns);
    nstate[i] = (ns << nb) - sz;
  }
  return [tpos + 7 >> 3, {
    b: al,
    s: syms,
    n: nbits,
    t: nstate
  }];
};
var rhu = function(dat, bt) {
  var i = 0, wc = -1;
  var buf = new u82(292), hb = dat[bt];
  var hw = buf.subarray(0, 256);
  var rc = buf.subarray(256, 268);
  var ri = new u16(buf.buffer, 268);
  if (hb < 128) {
    var _a = rfse(dat, bt + 1, 6), ebt = _a[0], fdt = _a[1];
    bt += hb;
    var epos = ebt << 3;
    var lb = dat[bt];
    if (!lb)
      err(0);
    var st1 = 0, st2 = 0, btr1 = fdt.b, btr2 = btr1;
    var fpos = (++bt << 3) - 8 + msb(lb);
    for (; ; ) {
      fpos -= btr1;
      if (fpos < epos)
        break;
      var cbt = fpos >> 3;
      st1 += (dat[cbt] | dat[cbt + 1] << 8) >> (fpos & 7) & (1 << btr1) - 1;
      hw[++wc] = fdt.s[st1];
      fpos -= btr2;
      if (fpos < epos)
        break;
      cbt = fpos >> 3;
      st2 += (dat[cbt] | dat[cbt + 1] << 8) >> (fpos & 7) & (1 << btr2) - 1;
      hw[++wc] = fdt.s[st2];
      btr1 = fdt.n[st1];
      st1 = fdt.t[st1];
      btr2 = fdt.n[st2];
      st2 = fdt.t[st2];
    }
    if (++wc > 255)
      err(0);
  } else {
    wc = hb - 127;
    for (; i < wc; i += 2) {
      var byte = dat[++bt];
      hw[i] = byte >> 4;
      hw[i + 1] = byte & 15;
    }
    ++bt;
  }
  var wes = 0;
  for (i = 0; i < wc; ++i) {
    var wt = hw[i];
    if (wt > 11)
      err(0);
    wes += wt && 1 << wt - 1;
  }
  var mb = msb(wes) + 1;
  var ts = 1 << mb;
  var rem = ts - wes;
  if (rem & rem - 1)
    err(0);
  hw[wc++] = msb(rem) + 1;
  for (i = 0; i < wc; ++i) {
    var wt = hw[i];
    ++rc[hw[i] = wt && mb + 1 - wt];
  }
  var hbuf = new u82(ts << 1);
  var syms = hbuf.subarray(0, ts), nb = hbuf.subarray(ts);
  ri[mb] = 0;
  for (i = mb; i > 0; --i) {
    var pv = ri[i];
    fill(nb, i, pv, ri[i - 1] = pv + rc[i] * (1 << mb - i));
  }
  if (ri[0] != ts)
    err(0);
  for (i = 0; i < wc; ++i) {
    var bits = hw[i];
    if (bits) {
      var code = ri[bits];
      fill(syms, i, code, ri[bits] = code + (1 << mb - bits));
    }
  }
  return [bt, {
    n: nb,
    b: mb,
    s: syms
  }];
};
var dllt = rfse(/* @__PURE__ */ new u82([
  81,
  16,
  99,
  140,
  49,
  198,
  24,
  99,
  12,
  33,
  196,
  24,
  99,
  102,
  102,
  134,
  70,
  146,
  4
]), 0, 6)[1];
var dmlt = rfse(/* @__PURE__ */ new u82([
  33,
  20,
  196,
  24,
  99,
  140,
  33,
  132,
  16,
  66,
  8,
  33,
  132,
  16,
  66,
  8,
  33,
  68,
  68,
  68,
  68,
  68,
  68,
  68,
  68,
  36,
  9
]), 0, 6)[1];
var doct = rfse(/* @__PURE__ */ new u82([
  32,
  132,
  16,
  66,
  102,
  70,
  68,
  68,
  68,
  68,
  36,
  73,
  2
]), 0, 5)[1];
var b2bl = function(b, s) {
  var len = b.length, bl = new i32(len);
  for (var i = 0; i < len; ++i) {
    bl[i] = s;
    s += 1 << b[i];
  }
  return bl;
};
var llb = /* @__PURE__ */ new u82((/* @__PURE__ */ new i32([
  0,
  0,
  0,
  0,
  16843009,
  50528770,
  134678020,
  202050057,
  269422093
])).buffer, 0, 36);
var llbl = /* @__PURE__ */ b2bl(llb, 0);
var mlb = /* @__PURE__ */ new u82((/* @__PURE__ */ new i32([
  0,
  0,
  0,
  0,
  0,
  0,
  0,
  0,
  16843009,
  50528770,
  117769220,
  185207048,
  252579084,
  16
])).buffer, 0, 53);
var mlbl = /* @__PURE__ */ b2bl(mlb, 3);
var dhu = function(dat, out, hu) {
  var len = dat.length, ss = out.length, lb = dat[len - 1], msk = (1 << hu.b) - 1, eb = -hu.b;
  if (!lb)
    err(0);
  var st = 0, btr = hu.b, pos = (len << 3) - 8 + msb(lb) - btr, i = -1;
  for (; pos > eb && i < ss; ) {
    var cbt = pos >> 3;
    var val = (dat[cbt] | dat[cbt + 1] << 8 | dat[cbt + 2] << 16) >> (pos & 7);
    st = (st << btr | val) & msk;
    out[++i] = hu.s[st];
    pos -= btr = hu.n[st];
  }
  if (pos != eb || i + 1 != ss)
    err(0);
};
var dhu4 = function(dat, out, hu) {
  var bt = 6;
  var ss = out.length, sz1 = ss + 3 >> 2, sz2 = sz1 << 1, sz3 = sz1 + sz2;
  dhu(dat.subarray(bt, bt += dat[0] | dat[1] << 8), out.subarray(0, sz1), hu);
  dhu(dat.subarray(bt, bt += dat[2] | dat[3] << 8), out.subarray(sz1, sz2), hu);
  dhu(dat.subarray(bt, bt += dat[4] | dat[5] << 8), out.subarray(sz2, sz3), hu);
  dhu(dat.subarray(bt), out.subarray(sz3), hu);
};
var rzb = function(dat, st, out) {
  var _a;
  var bt = st.b;
  var b0 = dat[bt], btype = b0 >> 1 & 3;
  st.l = b0 & 1;
  var sz = b0 >> 3 | dat[bt + 1] << 5 | dat[bt + 2] << 13;
  var ebt = (bt += 3) + sz;
  if (btype == 1) {
    if (bt >= dat.length)
      return;
    st.b = bt + 1;
    if (out) {
      fill(out, dat[bt], st.y, st.y += sz);
      return out;
    }
    return fill(new u82(sz), dat[bt]);
  }
  if (ebt > dat.length)
    return;
  if (btype == 0) {
    st.b = ebt;
    if (out) {
      out.set(dat.subarray(bt, ebt), st.y);
      st.y += sz;
      return out;
    }
    return slc(dat, bt, ebt);
  }
  if (btype == 2) {
    var b3 = dat[bt], lbt = b3 & 3, sf = b3 >> 2 & 3;
    var lss = b3 >> 4, lcs = 0, s4 = 0;
    if (lbt < 2) {
      if (sf & 1)
        lss |= dat[++bt] << 4 | (sf & 2 && dat[++bt] << 12);
      else
        lss = b3 >> 3;
    } else {
      s4 = sf;
      if (sf < 2)
        lss |= (dat[++bt] & 63) << 4, lcs = dat[bt] >> 6 | dat[++bt] << 2;
      else if (sf == 2)
        lss |= dat[++bt] << 4 | (dat[++bt] & 3) << 12, lcs = dat[bt] >> 2 | dat[++bt] << 6;
      else
        lss |= dat[++bt] << 4 | (dat[++bt] & 63) << 12, lcs = dat[bt] >> 6 | dat[++bt] << 2 | dat[++bt] << 10;
    }
    ++bt;
    var buf = out ? out.subarray(st.y, st.y + st.m) : new u82(st.m);
    var spl = buf.length - lss;
    if (lbt == 0)
      buf.set(dat.subarray(bt, bt += lss), spl);
    else if (lbt == 1)
      fill(buf, dat[bt++], spl);
    else {
      var hu = st.h;
      if (lbt == 2) {
        var hud = rhu(dat, bt);
        lcs += bt - (bt = hud[0]);
        st.h = hu = hud[1];
      } else if (!hu)
        err(0);
      (s4 ? dhu4 : dhu)(dat.subarray(bt, bt += lcs), buf.subarray(spl), hu);
    }
    var ns = dat[bt++];
    if (ns) {
      if (ns == 255)
        ns = (dat[bt++] | dat[bt++] << 8) + 32512;
      else if (ns > 127)
        ns = ns - 128 << 8 | dat[bt++];
      var scm = dat[bt++];
      if (scm & 3)
        err(0);
      var dts = [dmlt, doct, dllt];
      for (var i = 2; i > -1; --i) {
        var md = scm >> (i << 1) + 2 & 3;
        if (md == 1) {
          var rbuf = new u82([0, 0, dat[bt++]]);
          dts[i] = {
            s: rbuf.subarray(2, 3),
            n: rbuf.subarray(0, 1),
            t: new u16(rbuf.buffer, 0, 1),
            b: 0
          };
        } else if (md == 2) {
          _a = rfse(dat, bt, 9 - (i & 1)), bt = _a[0], dts[i] = _a[1];
        } else if (md == 3) {
          if (!st.t)
            err(0);
          dts[i] = st.t[i];
        }
      }
      var _b = st.t = dts, mlt = _b[0], oct = _b[1], llt = _b[2];
      var lb = dat[ebt - 1];
      if (!lb)
        err(0);
      var spos = (ebt << 3) - 8 + msb(lb) - llt.b, cbt = spos >> 3, oubt = 0;
      var lst = (dat[cbt] | dat[cbt + 1] << 8) >> (spos & 7) & (1 << llt.b) - 1;
      cbt = (spos -= oct.b) >> 3;
      var ost = (dat[cbt] | dat[cbt + 1] << 8) >> (spos & 7) & (1 << oct.b) - 1;
      cbt = (spos -= mlt.b) >> 3;
      var mst = (dat[cbt] | dat[cbt + 1] << 8) >> (spos & 7) & (1 << mlt.b) - 1;
      for (++ns; --ns; ) {
        var llc = llt.s[lst];
        var lbtr = llt.n[lst];
        var mlc = mlt.s[mst];
        var mbtr = mlt.n[mst];
        var ofc = oct.s[ost];
        var obtr = oct.n[ost];
        cbt = (spos -= ofc) >> 3;
        var ofp = 1 << ofc;
        var off = ofp + ((dat[cbt] | dat[cbt + 1] << 8 | dat[cbt + 2] << 16 | dat[cbt + 3] << 24) >>> (spos & 7) & ofp - 1);
        cbt = (spos -= mlb[mlc]) >> 3;
        var ml = mlbl[mlc] + ((dat[cbt] | dat[cbt + 1] << 8 | dat[cbt + 2] << 16) >> (spos & 7) & (1 << mlb[mlc]) - 1);
        cbt = (spos -= llb[llc]) >> 3;
        var ll = llbl[llc] + ((dat[cbt] | dat[cbt + 1] << 8 | dat[cbt + 2] << 16) >> (spos & 7) & (1 << llb[llc]) - 1);
        cbt = (spos -= lbtr) >> 3;
        lst = llt.t[lst] + ((dat[cbt] | dat[cbt + 1] << 8) >> (spos & 7) & (1 << lbtr) - 1);
        cbt = (spos -= mbtr) >> 3;
        mst = mlt.t[mst] + ((dat[cbt] | dat[cbt + 1] << 8) >> (spos & 7) & (1 << mbtr) - 1);
        cbt = (spos -= obtr) >> 3;
        ost = oct.t[ost] + ((dat[cbt] | dat[cbt + 1] << 8) >> (spos & 7) & (1 << obtr) - 1);
        if (off > 3) {
          st.o[2] = st.o[1];
          st.o[1] = st.o[0];
          st.o[0] = off -= 3;
        } else {
          var idx = off - (ll != 0);
          if (idx) {
            off = idx == 3 ? st.o[0] - 1 : st.o[idx];
            if (idx > 1)
              st.o[2] = st.o[1];
            st.o[1] = st.o[0];
            st.o[0] = off;
          } else
            off = st.o[0];
        }
        for (var i = 0; i < ll; ++i) {
          buf[oubt + i] = buf[spl + i];
        }
        oubt += ll, spl += ll;
        var stin = oubt - off;
        if (stin < 0) {
          var len = -stin;
          var bs = st.e + stin;
          if (len > ml)
            len = ml;
          for (var i = 0; i < len; ++i) {
            buf[oubt + i] = st.w[bs + i];
          }
          oubt += len, ml -= len, stin = 0;
        }
        for (var i = 0; i < ml; ++i) {
          buf[oubt + i] = buf[stin + i];
        }
        oubt += ml;
      }
      if (oubt != spl) {
        while (spl < buf.length) {
          buf[oubt++] = buf[spl++];
        }
      } else
        oubt = buf.length;
      if (out)
        st.y += oubt;
      else
        buf = slc(buf, 0, oubt);
    } else if (out) {
      st.y += lss;
      if (spl) {
        for (var i = 0; i < lss; ++i) {
          buf[i] = buf[spl + i];
        }
      }
    } else if (spl)
      buf = slc(buf, spl);
    st.b = ebt;
    return buf;
  }
  err(2);
};
var cct = function(bufs, ol) {
  if (bufs.length == 1)
    return bufs[0];
  var buf = new u82(ol);
  for (var i = 0, b = 0; i < bufs.length; ++i) {
    var chk = bufs[i];
    buf.set(chk, b);
    b += chk.length;
  }
  return buf;
};
function decompress(dat, buf) {
  var bufs = [], nb = +!buf;
  var bt = 0, ol = 0;
  for (; dat.length; ) {
    var st = rzfh(dat, nb || buf);
    if (typeof st == "object") {
      if (nb) {
        buf = null;
        if (st.w.length == st.u) {
          bufs.push(buf = st.w);
          ol += st.u;
        }
      } else {
        bufs.push(buf);
        st.e = 0;
      }
      for (; !st.l; ) {
        var blk = rzb(dat, st, buf);
        if (!blk)
          err(5);
        if (buf)
          st.e = st.y;
        else {
          bufs.push(blk);
          ol += blk.length;
          cpw(st.w, 0, blk.length);
          st.w.set(blk, st.w.length - blk.length);
        }
      }
      bt = st.b + st.c * 4;
    } else
      bt = st;
    dat = dat.subarray(bt);
  }
  return cct(bufs, ol);
}

// src/zstd.ts
var BLOCKS_MAX = 4096;
function expand(frame, length) {
  checkFrame(frame, length);
  const body = new Uint8Array(length);
  try {
    decompress(frame, body);
  } catch (error) {
    throw new Malformed(`it does not decompress: ${error instanceof Error ? error.message : error}`);
  }
  return body;
}
function checkFrame(frame, length) {
  const reader = new Reader(frame);
  if (reader.u32() !== 4247762216) throw new Malformed("it is not compressed as it says");
  const flags = reader.u8();
  const single = (flags & 32) !== 0;
  if (flags & 8) throw new Malformed("its frame has a reserved bit");
  if ((flags & 3) !== 0) throw new Malformed("it needs a dictionary");
  if (!single) reader.u8();
  const width = flags >> 6;
  const stated = width === 0 ? single ? reader.u8() : null : width === 1 ? reader.u16() + 256 : width === 2 ? reader.u32() : Number(reader.u64());
  if (stated !== length) throw new Malformed(`its frame says ${stated ?? "no"} bytes, not ${length}`);
  for (let blocks = 1, last = false; !last; blocks++) {
    if (blocks > BLOCKS_MAX) throw new Malformed("its frame has too many blocks");
    const header = reader.u8() | reader.u8() << 8 | reader.u8() << 16;
    last = (header & 1) !== 0;
    const kind = header >> 1 & 3;
    if (kind === 3) throw new Malformed("its frame has a block of a reserved kind");
    const size = header >> 3;
    if (size > 128 << 10) throw new Malformed("its frame has a block that is too large");
    reader.take(kind === 1 ? 1 : size);
  }
  if (flags & 4) reader.take(4);
  reader.finish();
}

// src/block.ts
var BODY_BYTES_MAX = 1 << 20;
var REFERENCES_MAX = 8192;
var KIND = { chunk: 1, mapLeaf: 2, mapInner: 3, inode: 4 };
var DOMAINS = {
  [KIND.chunk]: DOMAIN.chunk,
  [KIND.mapLeaf]: DOMAIN.mapLeaf,
  [KIND.mapInner]: DOMAIN.mapInner,
  [KIND.inode]: DOMAIN.inode
};
function readReference(reader) {
  algorithm(reader.u8());
  const address = reader.digest();
  const length = reader.u32();
  if (reader.option(() => reader.take(32))) throw new Malformed("its root directory is sealed, which needs a newer program");
  return { address, length };
}
function algorithm(found) {
  if (found !== 1) throw new Malformed(`digest algorithm ${found} is not known`);
}
function openBlock(key2, stored, reference, kind) {
  const reader = new Reader(stored);
  const found = reader.u8();
  const codec = reader.u8();
  if (found !== kind) throw new Malformed(`it is a block of kind ${found}, and one of kind ${kind} belongs there`);
  if (reference.length > BODY_BYTES_MAX) throw new Malformed("it would be too large");
  const count = reader.u32();
  if (count > REFERENCES_MAX) throw new Malformed("it has too many references");
  const addresses = reader.take(count * 32);
  const encoded = reader.bytes32();
  reader.finish();
  if (encoded.length > BODY_BYTES_MAX) throw new Malformed("it is too large");
  if (codec > 1) throw new Malformed(`its codec is ${codec}`);
  const body = codec === 0 ? encoded : expand(encoded, reference.length);
  if (body.length !== reference.length) throw new Malformed(`it has ${body.length} bytes, not ${reference.length}`);
  const address = digest(key2, DOMAINS[kind], u32(count), addresses, body);
  if (!equal(address, reference.address)) throw new Malformed(`it was altered: its digest is ${hex(address).slice(0, 16)}`);
  const references = Array.from({ length: count }, (_, i) => addresses.subarray(i * 32, i * 32 + 32));
  return { body, references };
}
var BodyReader = class extends Reader {
  #addresses;
  used = 0;
  constructor(body, addresses) {
    super(body);
    this.#addresses = addresses;
  }
  format() {
    const found = this.u8();
    if (found !== 1) throw new Malformed(`its format is ${found}, and this program knows 1`);
  }
  reference() {
    const address = this.#addresses[this.used++];
    if (!address) throw new Malformed("a reference is missing");
    algorithm(this.u8());
    const length = this.u32();
    if (length > BODY_BYTES_MAX) throw new Malformed("a referenced block is too large");
    if (this.flag("the seal flag")) throw new Malformed("a referenced block is sealed, which needs a newer program");
    return { address, length };
  }
  finish() {
    super.finish();
    if (this.used !== this.#addresses.length) throw new Malformed("it has references that it does not use");
  }
};

// src/keys.ts
var SETS_MAX = 1024;
var KEYS_FILE_BYTES_MAX = 8 * 1024;
var TERM_MAX_S = 366n * 86400n;
function readKeySet(reader) {
  const number2 = reader.u64();
  const origin = reader.u8();
  if (origin > 1) throw new Malformed(`its origin is of kind ${origin}`);
  let previous = null;
  if (origin === 0) reader.take(16);
  else previous = reader.digest();
  const role = readRole(reader);
  const freshness = reader.option(() => ({ role: readRole(reader), termMaxS: reader.u64(), untilS: reader.u64() }));
  const certificates = reader.flag("the flag of certificates");
  if (number2 === 0n || number2 > BigInt(SETS_MAX)) throw new Malformed(`its number is ${number2}`);
  if (previous === null !== (number2 === 1n)) throw new Malformed(`number ${number2} does not fit what it follows`);
  if (freshness && (freshness.termMaxS === 0n || freshness.termMaxS > TERM_MAX_S || freshness.untilS > LATEST_S)) {
    throw new Malformed("its renewals last too long");
  }
  return { number: Number(number2), previous, role, freshness, certificates };
}
function readSignedKeySet(reader) {
  return readSigned(reader, DOMAIN.releaseKeys, readKeySet);
}
function readKeysFile(bytes) {
  return readFile(bytes, "HF-keys", "key set", KEYS_FILE_BYTES_MAX, readSignedKeySet);
}
var whose = (number2) => `key set ${number2}`;
function wrongId(expected, found) {
  return new Refusal("WrongId", `the key set is of the release ${hex(found)}, not of ${hex(expected)}`);
}
function skipped(expected, found) {
  return new Refusal("Skipped", `this is key set ${found}, and key set ${expected} comes next; none may be left out`);
}
function forked(number2, known2, found) {
  const short2 = (digest2) => hex(digest2).slice(0, 16);
  return new Refusal(
    "Forked",
    `there are two key sets ${number2} of the release: ${short2(known2)} is the one seen first, and stands; ${short2(found)} is refused. Ask the publisher; if the keys were stolen, the release must be revoked`
  );
}
var KeyChain = class _KeyChain {
  constructor(sets) {
    this.sets = sets;
  }
  sets;
  static begin(id, first) {
    if (!equal(first.digest, id)) throw wrongId(id, first.digest);
    if (first.value.number !== 1) throw skipped(1, first.value.number);
    check("key set", first, [[whose(1), first.value.role]]);
    return new _KeyChain([first]);
  }
  static of(id, sets) {
    if (sets.length === 0) throw new Refusal("Malformed", "not a chain of key sets: it is empty");
    const chain = _KeyChain.begin(id, sets[0]);
    for (const set of sets.slice(1)) chain.#append(set);
    return chain;
  }
  /** The next set, or one that is known already. */
  extend(set) {
    const number2 = set.value.number;
    const known2 = this.sets[number2 - 1];
    if (!known2) return this.#append(set);
    if (equal(known2.digest, set.digest)) return;
    const before = this.sets[number2 - 2];
    if (!before) throw wrongId(this.id, set.digest);
    follows(before, set);
    throw forked(number2, known2.digest, set.digest);
  }
  get id() {
    return this.sets[0].digest;
  }
  get current() {
    return this.sets.at(-1).value;
  }
  set(number2) {
    return number2 >= 1n && number2 <= BigInt(this.sets.length) ? this.sets[Number(number2) - 1].value : null;
  }
  #append(set) {
    follows(this.sets.at(-1), set);
    this.sets.push(set);
  }
};
function follows(before, next) {
  const number2 = next.value.number;
  if (number2 !== before.value.number + 1) throw skipped(before.value.number + 1, number2);
  if (next.value.certificates !== before.value.certificates) {
    throw new Refusal("Purpose", `key set ${number2} changes whether the release is a certificate directory, which no key set may`);
  }
  check("key set", next, [[whose(number2 - 1), before.value.role], [whose(number2), next.value.role]]);
  const previous = next.value.previous;
  if (previous === null) throw skipped(number2, 1);
  if (equal(previous, before.digest)) return;
  throw before.value.number === 1 ? wrongId(before.digest, previous) : forked(before.value.number, before.digest, previous);
}

// src/record.ts
var ROOT_BYTES_MAX = 8 * 1024;
var NOTE_BYTES_MAX = 256;
function longer(a, b) {
  return b.untilS > a.untilS ? b : a;
}
function readRecord(reader) {
  const record = {
    release: reader.digest(),
    keySet: reader.u64(),
    sequence: reader.u64(),
    issuedS: reader.u64(),
    expiresS: reader.u64(),
    digestKey: reader.take(32),
    rootDir: readReference(reader),
    previous: reader.option(() => reader.digest()),
    note: reader.text32()
  };
  if (record.sequence === 0n) throw new Malformed("records are numbered from 1");
  if (record.sequence === 1n && record.previous) throw new Malformed("the first record names one before it");
  if (new TextEncoder().encode(record.note).length > NOTE_BYTES_MAX) throw new Malformed("its note is too long");
  if (/\p{Cc}/u.test(record.note)) throw new Malformed("its note has control characters");
  return lasts(record);
}
function readRenewal(reader) {
  return lasts({ release: reader.digest(), record: reader.digest(), issuedS: reader.u64(), expiresS: reader.u64() });
}
function lasts(value) {
  if (value.expiresS <= value.issuedS || value.expiresS > LATEST_S) {
    throw new Malformed(`it lasts from ${moment(value.issuedS)} to ${moment(value.expiresS)}`);
  }
  return value;
}
function readRootFile(bytes) {
  return readFile(bytes, "HF-root", "signed record of a release", ROOT_BYTES_MAX, (reader) => {
    const location = () => ({ digest: reader.digest(), bytes: reader.u64() });
    const file = {
      record: readSigned(reader, DOMAIN.releaseRecord, readRecord),
      renewal: reader.option(() => readSigned(reader, DOMAIN.releaseFreshness, readRenewal)),
      index: location()
    };
    reader.option(location);
    return file;
  });
}
function authenticate(chain, file) {
  const record = file.record.value;
  if (!equal(record.release, chain.id)) {
    throw new Refusal("WrongRelease", `the record is of the release ${hex(record.release)}, not of ${hex(chain.id)}`);
  }
  const set = chain.set(record.keySet);
  if (!set) {
    throw new Refusal(
      "UnknownKeySet",
      `the record is signed by key set ${record.keySet}, and only key sets up to ${chain.current.number} are known; the mirror may not have all of \`keys\` yet`
    );
  }
  check("record", file.record, [[whose(set.number), set.role]]);
  const byRecord = { fromS: record.issuedS, untilS: record.expiresS };
  if (!file.renewal) return { validity: byRecord, issuedLastS: record.issuedS };
  const byRenewal = renewed(set, file.record, file.renewal);
  const issuedLastS = byRenewal.fromS > record.issuedS ? byRenewal.fromS : record.issuedS;
  return { validity: longer(byRecord, byRenewal), issuedLastS };
}
function renewed(set, record, renewal) {
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
      `the renewal ends at ${moment(expiresS)}, and key set ${set.number} allows ${moment(allowedS)} at most`
    );
  }
  return { fromS: issuedS, untilS: expiresS };
}

// src/accept.ts
var AHEAD_MAX_S = 600n;
var short = (digest2) => hex(digest2).slice(0, 16);
var later = (a, b) => a > b ? a : b;
function accept(chain, file, seen, nowS, allowStale) {
  const authentic = authenticate(chain, file);
  const { value: record, digest: digest2 } = file.record;
  const current = chain.current;
  if (record.keySet < BigInt(current.number)) {
    throw new Refusal(
      "OlderKeySet",
      `the record is signed by key set ${record.keySet}, which key set ${current.number} has replaced; the mirror is behind, or somebody has the old keys`
    );
  }
  if (seen) notOlder(record, digest2, seen);
  const latestS = seen?.latestS ?? 0n;
  const timeS = later(nowS, latestS);
  const issuedS = authentic.issuedLastS;
  if (issuedS > later(nowS + AHEAD_MAX_S, latestS)) {
    throw new Refusal(
      "Future",
      `this device's clock says ${moment(nowS)}, but the release was signed at ${moment(issuedS)}. Set the clock; if it is right, the publisher's was wrong, and the release counts from then on`
    );
  }
  const warnings = [];
  if (latestS > nowS + AHEAD_MAX_S) {
    const text = `this device's clock says ${moment(nowS)}, but the release was signed at ${moment(latestS)}; that time is used. Set the clock`;
    warnings.push({ kind: "ClockBehind", text });
  }
  if (seen && record.previous && record.sequence === seen.sequence + 1n && !equal(record.previous, seen.record)) {
    const text = `there were two releases ${seen.sequence}: ${short(seen.record)} was seen here, and the new one follows ${short(record.previous)}. The publisher has lost and replaced one, or shows different people different things`;
    warnings.push({ kind: "OtherHistory", text });
  }
  const shown2 = authentic.validity;
  const validity = seen && equal(seen.record, digest2) ? longer(shown2, seen.validity) : shown2;
  const untilS = validity.untilS;
  if (untilS > shown2.untilS) {
    const text = `the mirror is behind: it shows a renewal until ${moment(shown2.untilS)}, and one until ${moment(untilS)} was seen before`;
    warnings.push({ kind: "OlderRenewal", text });
  }
  if (timeS > untilS) {
    if (!allowStale || current.certificates) {
      throw new Refusal(
        "Expired",
        `the release expired at ${moment(untilS)}, and it is ${moment(timeS)} now` + (timeS === nowS ? " by this device's clock" : " by what was seen of the release") + ": the publisher has not renewed it, or the mirror holds the renewal back. Try another mirror" + (current.certificates ? "; a certificate directory is never used after it has expired" : "")
      );
    }
    const text = `STALE: the release expired ${span(timeS - untilS)} ago, at ${moment(untilS)}; what is shown may be OLD, with faults that the publisher has corrected since. It is used only because that was asked for`;
    warnings.push({ kind: "Stale", text });
  } else if (timeS >= validity.fromS + (untilS - validity.fromS) / 2n) {
    const text = `the release expires in ${span(untilS - timeS)}, at ${moment(untilS)}, and was not renewed for more than half of its life`;
    warnings.push({ kind: "HalfLife", text });
  }
  const remembered = {
    sequence: record.sequence,
    record: digest2,
    issuedS: record.issuedS,
    validity,
    latestS: later(latestS, issuedS)
  };
  return { record, digest: digest2, validUntilS: untilS, warnings, seen: remembered };
}
function notOlder(record, digest2, seen) {
  const sequence = record.sequence;
  if (sequence < seen.sequence) {
    throw new Refusal(
      "Rollback",
      `the mirror shows release ${sequence}, and this browser has seen release ${seen.sequence} of it: it is behind, or rolls back`
    );
  }
  if (sequence === seen.sequence && !equal(digest2, seen.record)) {
    throw new Refusal(
      "Equivocation",
      `there are two releases ${sequence}, both signed: ${short(seen.record)} is the one seen first, and ${short(digest2)} is another. The publisher shows different people different things, or somebody has the keys`
    );
  }
  if (record.issuedS < seen.issuedS) {
    throw new Refusal(
      "Backwards",
      `release ${sequence} says that it was signed at ${moment(record.issuedS)}, before release ${seen.sequence} (at ${moment(seen.issuedS)}); the publisher's clock was wrong, and it has to be published again`
    );
  }
}

// src/names.ts
function names(path) {
  const parts = typeof path === "string" ? path.split("/").map(utf8) : path;
  return parts.filter((name) => name.length > 0 && !equal(name, utf8(".")));
}
function shown(path) {
  return names(path).map(shownName).join("/");
}
function shownName(name) {
  const escape = (bytes) => Array.from(bytes, (byte) => "\\x" + byte.toString(16).padStart(2, "0")).join("");
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(name);
  } catch {
    const one = (byte) => byte >= 32 && byte < 127 ? String.fromCharCode(byte) : escape(Uint8Array.of(byte));
    return Array.from(name, one).join("");
  }
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (one) => escape(utf8(one)));
}
function plain(text) {
  return shownName(utf8(text.replaceAll("\n", " ")));
}

// src/memory.ts
var MemoryError = class extends Error {
  name = "MemoryError";
};
var NAME = "holdfast.release.";
var Memory = class {
  constructor(id, storage) {
    this.id = id;
    this.storage = storage;
  }
  id;
  storage;
  /** Bytes of the key sets of each chain, by digest of the set. */
  #bytes = /* @__PURE__ */ new Map();
  /** Takes note of the bytes of a key set, so that it can be remembered. */
  note(set, file) {
    this.#bytes.set(hex(set.digest), file.slice(8));
  }
  load() {
    const name = NAME + hex(this.id);
    const text = this.storage.getItem(name);
    if (text === null) return { chain: null, seen: null, revoked: null };
    try {
      const state = JSON.parse(text);
      const sets = state.sets.map((one) => {
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
        latestS: BigInt(state.seen.latest)
      };
      const chain = sets.length > 0 ? KeyChain.of(this.id, sets) : null;
      return { chain, seen, revoked: state.revoked ? digits(state.revoked) : null };
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      throw new MemoryError(
        `what this browser remembers of the release is damaged: ${why}. Remove '${name}' from its storage, if you accept that a mirror may once show an older release than was seen here`
      );
    }
  }
  /** Remembers at least this. */
  save({ chain, seen, revoked }) {
    const state = {
      sets: (chain?.sets ?? []).map((set) => hex(this.#bytes.get(hex(set.digest)))),
      seen: seen && {
        sequence: String(seen.sequence),
        record: hex(seen.record),
        issued: String(seen.issuedS),
        from: String(seen.validity.fromS),
        until: String(seen.validity.untilS),
        latest: String(seen.latestS)
      },
      revoked: revoked && hex(revoked)
    };
    try {
      this.storage.setItem(NAME + hex(this.id), JSON.stringify(state));
    } catch {
      throw new MemoryError("this browser does not let the page remember what it has seen, so an older release could pass for the newest");
    }
  }
};
function digits(text) {
  const bytes = unhex(text);
  if (!bytes) throw new Malformed("no hexadecimal digits");
  return bytes;
}
function merged(known2, found) {
  if (!known2) return found;
  for (const [i, set] of found.sets.entries()) {
    const ours = known2.sets[i];
    if (ours && !equal(ours.digest, set.digest)) known2.extend(set);
  }
  return found.sets.length > known2.sets.length ? found : known2;
}

// src/mirrors.ts
var PATIENCE_MS = 1e4;
var BYTES_PER_S_MIN = 8 << 10;
var WHOLE_BYTES_MAX = 4 << 20;
var PUT_BACK_MS = 3e4;
var MirrorError = class extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
  kind;
  name = "MirrorError";
};
function mirrorUrl(text, base) {
  try {
    const url = new URL(text.endsWith("/") ? text : `${text}/`, base);
    const web = url.protocol === "https:" || url.protocol === "http:";
    return web && !url.username && !url.password && !url.search && !url.hash ? url.href : null;
  } catch {
    return null;
  }
}
var Mirror = class {
  constructor(url) {
    this.url = url;
  }
  url;
  failedAt = -Infinity;
  dropped = false;
  /** A file, or a range of one: at most `bytesMax` bytes, or as many as the range has. */
  async get(name, range2, bytesMax) {
    const stop = new AbortController();
    let timer = setTimeout(() => stop.abort(), PATIENCE_MS);
    try {
      const response = await fetch(this.url + name, {
        signal: stop.signal,
        credentials: "omit",
        // What is named by its digest may come from the browser's cache: it is checked all the same.
        cache: /^(packs|index)\//.test(name) ? "default" : "no-store",
        redirect: "error",
        referrerPolicy: "no-referrer",
        headers: range2 ? { Range: `bytes=${range2.start}-${range2.end - 1}` } : {}
      });
      if ([403, 404, 410].includes(response.status)) throw new MirrorError("Missing", `${this.url}: it has no ${name}`);
      const part = response.status === 206;
      if (!(response.status === 200 || part && range2)) {
        throw new MirrorError("Unreachable", `${this.url}: it answers ${response.status} when asked for ${name}`);
      }
      const skip = range2 && !part ? range2.start : 0;
      const wanted = range2 ? range2.end - range2.start : bytesMax;
      if (skip + wanted > Math.max(WHOLE_BYTES_MAX, bytesMax)) {
        throw new MirrorError("Wrong", `${this.url}: it does not send ranges`);
      }
      const bytes = await this.#body(response, skip + wanted, !range2 || part, () => {
        clearTimeout(timer);
        timer = setTimeout(() => stop.abort(), PATIENCE_MS);
      });
      if (range2 && bytes.length < skip + wanted) throw new MirrorError("Wrong", `${this.url}: ${name} is cut short`);
      return bytes.subarray(skip);
    } catch (error) {
      if (!(error instanceof MirrorError && error.kind === "Missing")) this.failedAt = Date.now();
      if (error instanceof MirrorError) throw error;
      const why = stop.signal.aborted ? "it does not answer in time" : "it cannot be reached, or does not allow pages of other origins to read it";
      throw new MirrorError("Unreachable", `${this.url}: ${why}`);
    } finally {
      clearTimeout(timer);
      stop.abort();
    }
  }
  /** At most `bytesMax` bytes of an answer; more than that is cut off, or refused if it should have ended there. */
  async #body(response, bytesMax, whole, onPart) {
    const parts = [];
    let length = 0;
    const began = Date.now();
    const reader = response.body?.getReader();
    while (reader && (whole || length < bytesMax)) {
      const { done, value } = await reader.read();
      if (done) break;
      onPart();
      length += value.length;
      if (whole && length > bytesMax) throw new MirrorError("Wrong", `${this.url}: it sends more than was asked for`);
      const seconds = (Date.now() - began) / 1e3 - PATIENCE_MS / 1e3;
      if (seconds > 0 && length < seconds * BYTES_PER_S_MIN) throw new MirrorError("Unreachable", `${this.url}: it is too slow`);
      parts.push(value);
    }
    return concat(...parts).subarray(0, bytesMax);
  }
};
var Mirrors = class {
  constructor(all, onDrop) {
    this.all = all;
    this.onDrop = onDrop;
  }
  all;
  onDrop;
  drops = [];
  bytesReceived = 0;
  /** Those to ask, in order: what failed lately comes last, and what sent something false only if nothing else is left. */
  order() {
    const good = this.all.filter((mirror) => !mirror.dropped);
    const late = (mirror) => Date.now() - mirror.failedAt < PUT_BACK_MS ? 1 : 0;
    return (good.length > 0 ? good : [...this.all]).sort((a, b) => late(a) - late(b));
  }
  /** Gets a file from the first mirror that has it as it should be. `check` throws [`Malformed`] for what is false. */
  async get(name, range2, bytesMax, path, check2) {
    const why = [];
    for (const mirror of this.order()) {
      try {
        const bytes = await mirror.get(name, range2, bytesMax);
        this.bytesReceived += bytes.length;
        return check2(bytes, mirror);
      } catch (error) {
        if (error instanceof MirrorError) {
          why.push(error);
        } else if (error instanceof Malformed) {
          this.drop(mirror, path, `${name}: ${error.message}`);
          why.push(new MirrorError("Wrong", `${mirror.url}: ${name}: ${error.message}`));
        } else {
          throw error;
        }
      }
    }
    const said = (kind2) => why.filter((error) => error.kind === kind2).length;
    const kind = said("Missing") === why.length ? "Missing" : said("Wrong") > 0 ? "Wrong" : "Unreachable";
    throw new MirrorError(kind, why.map((error) => error.message).join("; "));
  }
  /** A mirror sent something false: it is named, and not asked while another is left. */
  drop(mirror, path, why) {
    mirror.dropped = true;
    const drop = { mirror: mirror.url, path, why };
    if (this.drops.length < 100) this.drops.push(drop);
    this.onDrop(drop);
  }
};

// src/revocation.ts
var REVOCATION_BYTES_MAX = SETS_MAX * KEYS_FILE_BYTES_MAX + 8 * 1024;
var REASON_BYTES_MAX = 1024;
function readStatement(reader) {
  const statement = { release: reader.digest(), reason: reader.text32(), successor: reader.option(() => reader.digest()) };
  if (utf8(statement.reason).length > REASON_BYTES_MAX) throw new Malformed("its reason is too long");
  if (/[^\P{Cc}\n]/u.test(statement.reason)) throw new Malformed("its reason has control characters");
  if (statement.successor && equal(statement.successor, statement.release)) {
    throw new Malformed("it names the release as its own successor");
  }
  return statement;
}
function readCertificate(reader) {
  const count = reader.u32();
  const sets = [];
  for (let i = 0; i < count; i++) {
    if (sets.length >= SETS_MAX) throw new Malformed("it has too many key sets");
    sets.push(readSignedKeySet(reader));
  }
  return { sets, statement: readSigned(reader, DOMAIN.releaseRevocation, readStatement) };
}
function verifyRevocation(id, bytes) {
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

// src/admit.ts
var RevokedError = class extends Error {
  constructor(revoked, found) {
    const { reason, successor } = revoked;
    super(
      `the release was revoked for good by its publisher${reason ? `: ${plain(reason)}` : ", without a reason"} (${found})` + (successor ? `. Its successor is ${successor}` : "")
    );
    this.revoked = revoked;
  }
  revoked;
  name = "RevokedError";
};
async function admit(memory, mirror, nowS, allowStale) {
  const notices = await notRevoked(memory, mirror);
  const followed = await followKeys(memory, mirror);
  const file = readRootFile(await mirror.get("root", null, ROOT_BYTES_MAX));
  const known2 = memory.load();
  if (known2.revoked) throw new RevokedError(verifyRevocation(memory.id, known2.revoked), "found earlier, and remembered");
  const chain = merged(known2.chain, followed);
  const accepted = accept(chain, file, known2.seen, nowS, allowStale);
  memory.save({ chain, seen: accepted.seen, revoked: null });
  return { accepted, file, chain, notices };
}
async function notRevoked(memory, mirror) {
  const known2 = memory.load();
  if (known2.revoked) throw new RevokedError(verifyRevocation(memory.id, known2.revoked), "found earlier, and remembered");
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
async function followKeys(memory, mirror) {
  const fetched = async (number2) => {
    const bytes = await mirror.get(`keys/${number2}`, null, KEYS_FILE_BYTES_MAX);
    const set = readKeysFile(bytes);
    memory.note(set, bytes);
    return set;
  };
  const chain = memory.load().chain ?? KeyChain.begin(memory.id, await fetched(1));
  for (let number2 = Math.max(2, chain.current.number); number2 <= SETS_MAX; number2++) {
    let set;
    try {
      set = await fetched(number2);
    } catch (error) {
      if (error instanceof MirrorError && error.kind === "Missing") break;
      throw error;
    }
    if (set.value.number !== number2) throw new Refusal("Skipped", `keys/${number2} holds key set ${set.value.number}`);
    chain.extend(set);
  }
  memory.save({ ...memory.load(), chain: merged(memory.load().chain, chain) });
  return chain;
}

// src/pack.ts
var FRAME_BYTES_MAX = 4 + 32 + (1 << 20) + 8192 * 32 + 64;
function firstFrame(bytes) {
  try {
    const reader = new Reader(bytes);
    const length = reader.u32();
    if (length < 32 || length > FRAME_BYTES_MAX - 4) return null;
    const frame = { address: reader.take(32), stored: reader.take(length - 32) };
    return { frame, bytes: reader.at };
  } catch (error) {
    if (error instanceof Malformed) return null;
    throw error;
  }
}
function* frames(bytes) {
  for (let found = firstFrame(bytes); found; found = firstFrame(bytes)) {
    yield found.frame;
    bytes = bytes.subarray(found.bytes);
  }
}

// src/index_file.ts
var FIXED_BYTES = 20;
var PACK_NAME_BYTES = 40;
var ENTRY_BYTES = 28;
var PAGE_BYTES = 128 * ENTRY_BYTES;
var WHOLE_BYTES_MAX2 = 1 << 20;
var HEAD_BYTES_MAX = 8 << 20;
var PAGES_KEPT = 1024;
function readSizes(fixed, location) {
  const reader = new Reader(fixed);
  if (!equal(reader.take(8), utf8("HFINDEX1"))) throw new Malformed("it is no index");
  const [entries, packs] = [reader.u64(), reader.u32()];
  if (entries > 1n << 32n || packs > 1 << 20) throw new Malformed("it is too large an index");
  const pages = Math.ceil(Number(entries) / 128);
  const headBytes = FIXED_BYTES + packs * PACK_NAME_BYTES + pages * 8;
  const bytes = headBytes + Number(entries) * ENTRY_BYTES;
  if (BigInt(bytes) !== location.bytes || headBytes > HEAD_BYTES_MAX) {
    throw new MirrorError("Wrong", `${location.by[0]?.url}: index/${hex(location.digest)} has another size than it says`);
  }
  return { packs, pages, headBytes, bytes };
}
function readHead(bytes, location) {
  const sizes = readSizes(bytes.subarray(0, FIXED_BYTES), location);
  const reader = new Reader(bytes.subarray(FIXED_BYTES));
  const packs = Array.from({ length: sizes.packs }, () => ({ digest: reader.digest().slice(), bytes: Number(reader.u64()) }));
  const fences = new BigUint64Array(sizes.pages).map(() => bigEndian(reader.take(8)));
  return { headBytes: sizes.headBytes, bytes: sizes.bytes, packs, fences };
}
function bigEndian(bytes) {
  return new DataView(bytes.buffer, bytes.byteOffset, 8).getBigUint64(0);
}
function partition(fences, within) {
  let [low, high] = [0, fences.length];
  while (low < high) {
    const middle = low + high >> 1;
    if (within(fences[middle])) low = middle + 1;
    else high = middle;
  }
  return low;
}
var RemoteIndex = class _RemoteIndex {
  constructor(name, by, mirrors, head, whole) {
    this.name = name;
    this.by = by;
    this.mirrors = mirrors;
    this.head = head;
    this.whole = whole;
  }
  name;
  by;
  mirrors;
  head;
  whole;
  #pages = /* @__PURE__ */ new Map();
  static async open(mirrors, location) {
    const name = `index/${hex(location.digest)}`;
    if (location.bytes <= BigInt(WHOLE_BYTES_MAX2)) {
      return mirrors.get(name, null, Number(location.bytes), null, (bytes) => {
        if (!equal(digest(WELL_KNOWN, DOMAIN.releaseFile, bytes), location.digest)) {
          throw new Malformed("its content is not what its name says");
        }
        const head2 = readHead(bytes, location);
        return new _RemoteIndex(name, location.by, mirrors, head2, bytes.subarray(head2.headBytes));
      });
    }
    const fixed = { start: 0, end: FIXED_BYTES };
    const sizes = await mirrors.get(name, fixed, FIXED_BYTES, null, (bytes) => readSizes(bytes, location));
    const range2 = { start: 0, end: sizes.headBytes };
    const head = await mirrors.get(name, range2, sizes.headBytes, null, (bytes) => readHead(bytes, location));
    return new _RemoteIndex(name, location.by, mirrors, head, null);
  }
  /** Where a block lies, as far as this index knows. */
  async find(address) {
    const key2 = address.subarray(0, 16);
    if (this.whole) return this.#findIn(this.whole, key2);
    const fence = bigEndian(key2);
    const { fences, headBytes, bytes } = this.head;
    const first = Math.max(0, partition(fences, (known2) => known2 < fence) - 1);
    const end = Math.min(partition(fences, (known2) => known2 <= fence), first + 4);
    for (let page = first; page < end; page++) {
      const start = headBytes + page * PAGE_BYTES;
      const place = this.#findIn(await this.#page(page, start, Math.min(start + PAGE_BYTES, bytes)), key2);
      if (place) return place;
    }
    return null;
  }
  async #page(page, start, end) {
    const known2 = this.#pages.get(page);
    if (known2) return known2;
    const bytes = await this.mirrors.get(this.name, { start, end }, end - start, null, (bytes2) => bytes2);
    if (this.#pages.size >= PAGES_KEPT) this.#pages.delete(this.#pages.keys().next().value);
    this.#pages.set(page, bytes);
    return bytes;
  }
  #findIn(entries, key2) {
    let [low, high] = [0, Math.floor(entries.length / ENTRY_BYTES)];
    while (low < high) {
      const middle = low + high >> 1;
      const order = compare(entries.subarray(middle * ENTRY_BYTES, middle * ENTRY_BYTES + 16), key2);
      if (order === 0) {
        const reader = new Reader(entries.subarray(middle * ENTRY_BYTES + 16, (middle + 1) * ENTRY_BYTES));
        const [number2, offset, bytes] = [reader.u32(), reader.u32(), reader.u32()];
        const pack = this.head.packs[number2];
        if (!pack || offset + bytes > pack.bytes || bytes > FRAME_BYTES_MAX) return null;
        return { pack: `packs/${hex(pack.digest)}`, packBytes: pack.bytes, offset, bytes };
      }
      if (order < 0) low = middle + 1;
      else high = middle;
    }
    return null;
  }
};

// src/blocks.ts
var GAP_BYTES = 64 << 10;
var RANGE_BYTES_MAX = 4 << 20;
var WINDOW_BYTES = 128 << 10;
var FRAMES_BYTES_MAX = 32 << 20;
var BLOCKS_BYTES_MAX = 32 << 20;
var FETCHES_MAX = 4;
var Cache = class {
  constructor(bytesMax) {
    this.bytesMax = bytesMax;
  }
  bytesMax;
  #items = /* @__PURE__ */ new Map();
  #bytes = 0;
  get(key2) {
    const found = this.#items.get(key2);
    if (!found) return null;
    this.#items.delete(key2);
    this.#items.set(key2, found);
    return found.item;
  }
  put(key2, item, bytes) {
    this.delete(key2);
    this.#items.set(key2, { item, bytes });
    this.#bytes += bytes;
    for (const oldest of this.#items.keys()) {
      if (this.#bytes <= this.bytesMax) break;
      this.delete(oldest);
    }
  }
  delete(key2) {
    this.#bytes -= this.#items.get(key2)?.bytes ?? 0;
    this.#items.delete(key2);
  }
};
var Blocks = class {
  constructor(key2, mirrors, locations) {
    this.key = key2;
    this.mirrors = mirrors;
    this.locations = locations;
  }
  key;
  mirrors;
  locations;
  verifiedBlocks = 0;
  verifiedBytes = 0;
  #frames = new Cache(FRAMES_BYTES_MAX);
  #blocks = new Cache(BLOCKS_BYTES_MAX);
  #underWay = /* @__PURE__ */ new Map();
  #indexes = [];
  /** The same blocks for who reads `path`, so that what is false can be told with its name. */
  for(path) {
    return {
      key: this.key,
      fetch: (reference, kind) => this.#fetch(reference, kind, path),
      prefetch: (references) => this.#prefetch(references, path)
    };
  }
  async #fetch(reference, kind, path) {
    const name = hex(reference.address);
    const known2 = this.#blocks.get(name);
    if (known2 && known2.kind === kind && known2.block.body.length === reference.length) return known2.block;
    for (let tries = 0; ; tries++) {
      const kept = this.#frames.get(name);
      if (!kept) {
        await this.#bring([reference.address], path);
        if (this.#frames.get(name)) continue;
        throw new MirrorError("Missing", `no mirror has block ${name.slice(0, 16)}`);
      }
      try {
        const block = openBlock(this.key, kept.stored, reference, kind);
        this.verifiedBlocks++;
        this.verifiedBytes += block.body.length;
        this.#frames.delete(name);
        this.#blocks.put(name, { block, kind }, block.body.length + block.references.length * 32 + 200);
        return block;
      } catch (error) {
        if (!(error instanceof Malformed)) throw error;
        this.#frames.delete(name);
        this.mirrors.drop(kept.mirror, path, `${kept.file}: block ${name.slice(0, 16)}: ${error.message}`);
        if (tries >= this.mirrors.all.length || this.mirrors.all.every((mirror) => mirror.dropped)) {
          throw new MirrorError("Wrong", `${kept.mirror.url}: ${kept.file}: block ${name.slice(0, 16)}: ${error.message}`);
        }
      }
    }
  }
  async #prefetch(references, path) {
    const missing = references.map((reference) => reference.address).filter((address) => !this.#blocks.get(hex(address)) && !this.#frames.get(hex(address)));
    if (missing.length > 1) await this.#bring(missing, path).catch(() => {
    });
  }
  /** Brings frames of these blocks near, one request for those that lie together. */
  async #bring(addresses, path) {
    let left = addresses;
    let failed = null;
    for (let number2 = 0; left.length > 0; number2++) {
      const index = await this.#index(number2);
      if (!index) break;
      const wanted = [];
      for (const address of left) {
        const place = await index.find(address);
        if (place) wanted.push({ place, address });
      }
      const groups = grouped(wanted);
      const fetchers = Array.from({ length: FETCHES_MAX }, async () => {
        for (let group = groups.shift(); group; group = groups.shift()) {
          await this.#range(index, group, addresses.length === 1, path).catch((error) => failed = error);
        }
      });
      await Promise.all(fetchers);
      left = left.filter((address) => !this.#frames.get(hex(address)));
    }
    if (left.length > 0 && failed) throw failed;
  }
  /** The indexes that mirrors name, the likeliest first. One that cannot be had is passed over, and tried again next time. */
  async #index(number2) {
    let failed = null;
    for (const location of this.locations) {
      if (this.#indexes.length > number2) break;
      const name = hex(location.digest);
      if (this.#indexes.some((index) => index.name.endsWith(name))) continue;
      try {
        this.#indexes.push(await RemoteIndex.open(this.mirrors, location));
      } catch (error) {
        failed = error;
      }
    }
    if (failed && this.#indexes.length === 0) throw failed;
    return this.#indexes[number2] ?? null;
  }
  async #range(index, group, alone, path) {
    const { pack, packBytes, offset: start } = group[0].place;
    let end = Math.max(...group.map(({ place }) => place.offset + place.bytes));
    if (alone && end - start < WINDOW_BYTES) end = Math.min(start + WINDOW_BYTES, packBytes);
    const name = `${pack}:${start}-${end}`;
    const known2 = this.#underWay.get(name);
    if (known2) return known2;
    const fetching = this.mirrors.get(pack, { start, end }, end - start, path, (bytes, mirror) => {
      for (const { place, address } of group) {
        const found = firstFrame(bytes.subarray(place.offset - start));
        if (!found || !equal(found.frame.address, address)) {
          const why = `block ${hex(address).slice(0, 16)} is not where the index says`;
          if (index.by.includes(mirror)) throw new Malformed(why);
          throw new MirrorError("Wrong", `${mirror.url}: ${pack}: ${why}`);
        }
      }
      for (const frame of frames(bytes)) {
        this.#frames.put(hex(frame.address), { stored: frame.stored, mirror, file: pack }, frame.stored.length + 200);
      }
    });
    this.#underWay.set(name, fetching);
    try {
      await fetching;
    } finally {
      this.#underWay.delete(name);
    }
  }
};
function grouped(wanted) {
  const order = (a, b) => a.place.pack < b.place.pack ? -1 : a.place.pack > b.place.pack ? 1 : a.place.offset - b.place.offset;
  const groups = [];
  for (const one of [...wanted].sort(order)) {
    const group = groups.at(-1);
    const [first, last] = [group?.[0]?.place, group?.at(-1)?.place];
    const near = first && last && one.place.pack === first.pack && one.place.offset <= last.offset + last.bytes + GAP_BYTES && one.place.offset + one.place.bytes - first.offset <= RANGE_BYTES_MAX;
    if (near) group.push(one);
    else groups.push([one]);
  }
  return groups;
}

// src/map.ts
var LEVEL_MAX = 15;
var KEY_BYTES_MAX = 1024;
var VALUE_BYTES_MAX = 1024;
var VALUE_REFERENCES_MAX = 16;
var ENTRIES_MIN = 16;
var ENTRIES_MAX = 128;
var BOUNDARY_ONE_IN = 32;
function readRoot(reader) {
  if (!reader.flag("the map flag")) return null;
  const level = reader.u8();
  const entries = reader.u64();
  if (level > LEVEL_MAX || entries === 0n) throw new Malformed("its map is impossible");
  return { level, entries, reference: reader.reference() };
}
function topOf(root) {
  return root && { ...root, lower: null, upper: null, last: true };
}
var kindOf = (level) => level === 0 ? KIND.mapLeaf : KIND.mapInner;
function endsNode(digestKey, level, count, key2) {
  if (count >= ENTRIES_MAX) return true;
  if (count < ENTRIES_MIN) return false;
  const found = digest(digestKey, DOMAIN.boundary, Uint8Array.of(level), key2);
  return new Reader(found).u32() % BOUNDARY_ONE_IN === 0;
}
function readValue(reader) {
  const bytes = reader.bytes16();
  const count = reader.u8();
  if (bytes.length > VALUE_BYTES_MAX || count > VALUE_REFERENCES_MAX) throw new Malformed("a value is too large");
  return { bytes, references: Array.from({ length: count }, () => reader.reference()) };
}
var known = /* @__PURE__ */ new WeakMap();
function parsed(digestKey, block, level) {
  const found = known.get(block);
  if (found?.level === level) return found;
  const reader = new BodyReader(block.body, block.references);
  reader.format();
  if (level > 0 && reader.u8() !== level) throw new Malformed("a map node has another level than its parent says");
  const count = reader.u32();
  if (count < 1 || count > ENTRIES_MAX) throw new Malformed(`a map node has ${count} entries`);
  const node = { level, entries: [], children: [], sum: 0n, ended: false };
  let previous = null;
  for (let index = 1; index <= count; index++) {
    if (node.ended) throw new Malformed("a map node goes on after a key that ends nodes");
    const key2 = reader.bytes16();
    if (key2.length < 1 || key2.length > KEY_BYTES_MAX) throw new Malformed("a key has an impossible length");
    if (previous && compare(previous, key2) >= 0) throw new Malformed("keys of a map are out of order");
    previous = key2;
    node.ended = endsNode(digestKey, level, index, key2);
    if (level === 0) {
      node.entries.push({ key: key2, value: readValue(reader) });
      node.sum += 1n;
    } else {
      const below2 = reader.u64();
      if (below2 === 0n) throw new Malformed("a map node counts a child without entries");
      node.children.push({ key: key2, entries: below2, reference: reader.reference() });
      node.sum += below2;
    }
  }
  reader.finish();
  known.set(block, node);
  return node;
}
function parse(digestKey, block, place) {
  const { level } = place;
  const { entries, children, sum, ended } = parsed(digestKey, block, level);
  const slots = level === 0 ? entries : children;
  const [first, last] = [slots[0].key, slots.at(-1).key];
  if (place.lower && compare(place.lower, first) >= 0) throw new Malformed("keys of a map are misplaced");
  if (place.upper === null && level > 0 && slots.length < 2) throw new Malformed("the top of a map has one child");
  if (place.upper && !equal(last, place.upper)) throw new Malformed("a map node ends with another key than its parent says");
  if (sum !== place.entries) throw new Malformed(`a map node has ${sum} entries, and its parent says ${place.entries}`);
  if (!place.last && !ended) throw new Malformed("a map node ends before its keys say so");
  return level === 0 ? { place, level, slots: entries } : { place, level, slots: children };
}
async function open(source, place) {
  return parse(source.key, await source.fetch(place.reference, kindOf(place.level)), place);
}
function childAt(node, index) {
  const child = node.slots[index];
  return {
    reference: child.reference,
    level: node.level - 1,
    entries: child.entries,
    lower: index > 0 ? node.slots[index - 1].key : node.place.lower,
    upper: child.key,
    last: node.place.last && index + 1 === node.slots.length
  };
}
function partition2(node, within) {
  let [low, high] = [0, node.slots.length];
  while (low < high) {
    const middle = low + high >> 1;
    if (within(node.slots[middle].key)) low = middle + 1;
    else high = middle;
  }
  return low;
}
async function get(source, root, key2) {
  let place = topOf(root);
  while (place) {
    const node = await open(source, place);
    const index = partition2(node, (known2) => compare(known2, key2) < 0);
    if (index === node.slots.length) return null;
    if (node.level === 0) {
      const slot = node.slots[index];
      return equal(slot.key, key2) ? slot.value : null;
    }
    place = childAt(node, index);
  }
  return null;
}
async function range(source, root, after, limit) {
  const found = [];
  const top = topOf(root);
  if (top) await rangeBelow(source, top, after, limit, found);
  return found;
}
async function rangeBelow(source, place, after, limit, found) {
  const node = await open(source, place);
  const first = after ? partition2(node, (key2) => compare(key2, after) <= 0) : 0;
  if (node.level === 0) {
    found.push(...node.slots.slice(first, first + limit - found.length));
    return;
  }
  const children = node.slots.slice(first);
  let wanted = BigInt(limit - found.length);
  const soon = children.filter((child, index) => {
    const needed = wanted > 0n;
    if (index > 0) wanted -= child.entries;
    return needed;
  });
  await source.prefetch(soon.slice(0, 64).map((child) => child.reference));
  for (let index = first; index < node.slots.length && found.length < limit; index++) {
    await rangeBelow(source, childAt(node, index), after, limit, found);
  }
}
async function floor(source, root, upper) {
  const top = topOf(root);
  return top && floorBelow(source, top, upper);
}
async function floorBelow(source, place, upper) {
  const node = await open(source, place);
  const within = upper ? partition2(node, (key2) => compare(key2, upper) <= 0) : node.slots.length;
  if (node.level === 0) return within > 0 ? node.slots[within - 1] : null;
  if (within < node.slots.length) {
    const found = await floorBelow(source, childAt(node, within), upper);
    if (found) return found;
  }
  return within > 0 ? floorBelow(source, childAt(node, within - 1), null) : null;
}
async function* diff(source, a, b) {
  const stack = (root) => root ? [{ place: topOf(root) }] : [];
  const [left, right] = [stack(a), stack(b)];
  const unfold = async (heads) => {
    const node = await open(source, heads.pop().place);
    for (let index = node.slots.length - 1; index >= 0; index--) {
      heads.push(node.level === 0 ? { entry: node.slots[index] } : { place: childAt(node, index) });
    }
  };
  for (; ; ) {
    const [x, y] = [left.at(-1), right.at(-1)];
    if (!x && !y) return;
    if (x && y && "place" in x && "place" in y) {
      const [p, q] = [x.place, y.place];
      if (p.level === q.level && equal(p.reference.address, q.reference.address)) {
        left.pop();
        right.pop();
        continue;
      }
      if (p.level >= q.level) await unfold(left);
      if (q.level >= p.level) await unfold(right);
    } else if (x && "place" in x) {
      await unfold(left);
    } else if (y && "place" in y) {
      await unfold(right);
    } else {
      const [before, after] = [x?.entry, y?.entry];
      const order = !before ? 1 : !after ? -1 : compare(before.key, after.key);
      if (order <= 0) left.pop();
      if (order >= 0) right.pop();
      const key2 = (order <= 0 ? before : after).key;
      if (order === 0 && sameValue(before.value, after.value)) continue;
      yield { key: key2, before: order <= 0 ? before.value : null, after: order >= 0 ? after.value : null };
    }
  }
}
function sameValue(a, b) {
  return equal(a.bytes, b.bytes) && a.references.length === b.references.length && a.references.every((one, i) => equal(one.address, b.references[i].address) && one.length === b.references[i].length);
}

// src/inode.ts
var INLINE_BYTES_MAX = 256;
var INLINE_EXTENTS_MAX = 8;
var INLINE_INODE_BYTES_MAX = 512;
var TARGET_BYTES_MAX = 4095;
var ATTRIBUTE_BYTES_MAX = 64 * 1024;
var FILE_BYTES_MAX = (1n << 63n) - 1n;
var KINDS = ["file", "directory", "link", "fifo", "socket", "character device", "block device"];
function checkExtent(extent) {
  const { offset, skip, length, reference } = extent;
  if (length < 1 || length > BODY_BYTES_MAX || skip + length > reference.length) throw new Malformed("an extent leaves its chunk");
  if (offset > FILE_BYTES_MAX - BigInt(length)) throw new Malformed("an extent lies beyond the largest file");
  return extent;
}
function readExtents(reader) {
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
function readContent(reader, kind, size) {
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
var OPAQUE = new TextEncoder().encode("holdfast.opaque");
function readInode(body, addresses) {
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
  if (mode > 4095) throw new Malformed("an impossible mode");
  if (size > FILE_BYTES_MAX) throw new Malformed("an impossible size");
  if (writer !== 0 || changedNs !== modifiedNs) throw new Malformed("an inode of a release has no writer and one time");
  if (device !== 0 && !kind.endsWith("device")) throw new Malformed("a device number of what is no device");
  let attributeBytes = 0;
  let opaque = false;
  let previous = null;
  for (let count = reader.u16(); count > 0; count--) {
    const name = reader.take(reader.u8());
    attributeBytes += name.length + reader.bytes32().length;
    if (name.length === 0 || previous && compare(previous, name) >= 0) throw new Malformed("attributes are out of order");
    previous = name;
    opaque ||= equal(name, OPAQUE);
  }
  if (attributeBytes > ATTRIBUTE_BYTES_MAX) throw new Malformed("too many attributes");
  const content = readContent(reader, kind, size);
  reader.finish();
  return { kind, mode, links, size, modifiedNs, opaque, content };
}
function isName(name) {
  const dots = name.length <= 2 && name.every((byte) => byte === 46);
  return name.length >= 1 && name.length <= 255 && !dots && !name.includes(47) && !name.includes(0);
}
function readEntry(value) {
  const reader = new Reader(value.bytes);
  const kind = KINDS[reader.u8() - 1];
  if (!kind) throw new Malformed("an entry of a kind that is not known");
  const hasLinks = reader.flag("the link flag");
  if (hasLinks) reader.u64();
  const form = reader.u8();
  const body = reader.rest();
  if (form === 1 && body.length === 0 && value.references.length === 1) return { kind, hasLinks, slot: value.references[0] };
  if (form !== 0 || body.length > INLINE_INODE_BYTES_MAX) throw new Malformed("an entry has neither an inode nor a reference to one");
  const inode = readInode(body, value.references.map((reference) => reference.address));
  const lengths = referenceLengths(inode);
  if (lengths.some((length, i) => length !== value.references[i].length)) throw new Malformed("an inode disagrees with its own references");
  return checkEntry({ kind, hasLinks, slot: inode }, inode);
}
function referenceLengths(inode) {
  const { content } = inode;
  if (content.is === "extents") return content.extents.map((extent) => extent.reference.length);
  if (content.is === "directory" || content.is === "extent map") return content.map ? [content.map.reference.length] : [];
  return [];
}
function checkEntry(entry, inode) {
  if (inode.kind !== entry.kind) throw new Malformed("an entry says another kind than its inode");
  if (entry.hasLinks !== inode.links > 1 || entry.hasLinks && inode.kind === "directory") {
    throw new Malformed("a link count does not go with the names");
  }
  return entry;
}
async function loadInode(source, reference) {
  const block = await source.fetch(reference, KIND.inode);
  return readInode(block.body, block.references);
}
async function inodeOf(source, entry) {
  if ("kind" in entry.slot) return entry.slot;
  const inode = await loadInode(source, entry.slot);
  checkEntry(entry, inode);
  return inode;
}

// src/changes.ts
var DEPTH_MAX = 256;
async function* changes(source, before, after) {
  const [a, b] = [await loadInode(source, before), await loadInode(source, after)];
  yield* below(source, [], a, b);
}
async function* below(source, path, a, b) {
  if (a.content.is !== "directory" || b.content.is !== "directory") return;
  if (path.length > DEPTH_MAX) throw new Malformed("it is deeper than any path that is followed");
  for await (const { key: key2, before, after } of diff(source, a.content.map, b.content.map)) {
    const here = [...path, key2];
    const load = async (value) => value && inodeOf(source, readEntry(value));
    const [x, y] = [await load(before), await load(after)];
    if (!x || !y) {
      yield { path: here, what: x ? "removed" : "added", kind: (x ?? y).kind };
    } else if (x.kind === "directory" && y.kind === "directory") {
      yield* below(source, here, x, y);
    } else {
      const same = x.kind === y.kind && x.size === y.size && sameContent(x.content, y.content);
      yield { path: here, what: same ? "attributes" : "changed", kind: y.kind };
    }
  }
}
function sameContent(a, b) {
  return equal(key(a), key(b));
}
function key(content) {
  switch (content.is) {
    case "none":
      return utf8("none");
    case "inline":
      return concat(utf8("inline "), content.bytes);
    case "target":
      return concat(utf8("target "), content.target);
    case "extents":
      return concat(
        ...content.extents.flatMap(({ offset, skip, length, reference }) => [utf8(`${offset} ${skip} ${length} `), reference.address])
      );
    case "extent map":
    case "directory":
      return concat(utf8("map "), content.map?.reference.address ?? new Uint8Array());
  }
}

// src/file.ts
var HOLE_BYTES = 1 << 20;
var BATCH = 32;
function bigEndian2(offset) {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, offset);
  return bytes;
}
function extentOf(key2, value) {
  if (key2.length !== 8) throw new Malformed("the key of an extent is no offset");
  const offset = new DataView(key2.buffer, key2.byteOffset, 8).getBigUint64(0);
  const reader = new Reader(value.bytes);
  const [skip, length] = [reader.u32(), reader.u32()];
  reader.finish();
  if (value.references.length !== 1) throw new Malformed("an extent has exactly one chunk");
  return checkExtent({ offset, skip, length, reference: value.references[0] });
}
async function* extentsFrom(source, map, from) {
  let end = 0n;
  const next = (key2, value) => {
    const extent = extentOf(key2, value);
    if (extent.offset < end) throw new Malformed("extents of a file are out of order");
    end = extent.offset + BigInt(extent.length);
    return extent;
  };
  const first = await floor(source, map, bigEndian2(from));
  if (first) yield next(first.key, first.value);
  let after = first?.key ?? null;
  for (; ; ) {
    const batch = await range(source, map, after, BATCH);
    const extents = batch.map(({ key: key2, value }) => next(key2, value));
    await source.prefetch(extents.map((extent) => extent.reference));
    yield* extents;
    if (batch.length < BATCH) return;
    after = batch.at(-1).key;
  }
}
async function* listed(source, extents) {
  await source.prefetch(extents.map((extent) => extent.reference));
  yield* extents;
}
async function* read(source, inode, start = 0n, end = inode.size) {
  const { content, size } = inode;
  const until = end < size ? end : size;
  let at = start;
  const zeroes = function* (to) {
    while (at < to) {
      const length = to - at < BigInt(HOLE_BYTES) ? Number(to - at) : HOLE_BYTES;
      at += BigInt(length);
      yield new Uint8Array(length);
    }
  };
  if (content.is === "inline" && at < until) {
    const within = (place) => Number(min(place, BigInt(content.bytes.length)));
    const bytes = content.bytes.subarray(within(at), within(until));
    at += BigInt(bytes.length);
    if (bytes.length > 0) yield bytes;
  }
  if (content.is === "extents" || content.is === "extent map") {
    const extents = content.is === "extents" ? listed(source, content.extents) : extentsFrom(source, content.map, start);
    for await (const extent of extents) {
      if (at >= until || extent.offset >= until) break;
      const extentEnd = extent.offset + BigInt(extent.length);
      if (extentEnd <= at) continue;
      yield* zeroes(extent.offset);
      const chunk = await source.fetch(extent.reference, KIND.chunk);
      const from = extent.skip + Number(at - extent.offset);
      const to = extent.skip + Number(min(extentEnd, until) - extent.offset);
      at += BigInt(to - from);
      yield chunk.body.subarray(from, to);
    }
  }
  yield* zeroes(until);
}
function min(a, b) {
  return a < b ? a : b;
}

// src/release.ts
var LINKS_MAX = 40;
var DEPTH_MAX2 = 256;
var PAGE = 100;
var PathError = class extends Error {
  constructor(path, isFalse, why) {
    super(`${path || "the top directory"}: ${why}`);
    this.path = path;
    this.isFalse = isFalse;
    this.why = why;
  }
  path;
  isFalse;
  why;
  name = "PathError";
};
var OpenError = class extends Error {
  constructor(why) {
    super(`no mirror has the release as it should be:
${why.map((one) => one.message).join("\n")}`);
    this.why = why;
  }
  why;
  name = "OpenError";
};
async function open2(mirrorUrls, id, options) {
  const idBytes = unhex(id.toLowerCase());
  if (!idBytes || idBytes.length !== 32) throw new TypeError("an ID of a release has 64 hexadecimal digits");
  const urls = [...new Set(mirrorUrls.map((url) => mirrorUrl(url)))];
  if (urls.length === 0 || urls.includes(null)) throw new TypeError("a mirror is named by its address, https://HOST/PATH/");
  const now = options.now ?? (() => BigInt(Math.floor(Date.now() / 1e3)));
  const mirrors = urls.map((url) => new Mirror(url));
  const memory = new Memory(idBytes, options.storage);
  const firstVisit = memory.load().seen === null;
  const answers = await Promise.allSettled(mirrors.map((mirror) => admit(memory, mirror, now(), options.allowStale ?? false)));
  let best = null;
  const why = [];
  const proofs = [];
  for (const [i, answer] of answers.entries()) {
    if (answer.status === "fulfilled") {
      const found = answer.value.accepted;
      const known2 = best?.accepted;
      const newer = !known2 || found.record.sequence > known2.record.sequence || found.record.sequence === known2.record.sequence && found.validUntilS > known2.validUntilS;
      if (newer) best = answer.value;
      continue;
    }
    const error = answer.reason;
    if (error instanceof RevokedError || error instanceof MemoryError) throw error;
    if (!(error instanceof Refusal || error instanceof Malformed || error instanceof MirrorError)) throw error;
    const kind = error instanceof Malformed ? "Malformed" : error.kind;
    const message = error.message.startsWith(mirrors[i].url) ? error.message : `${mirrors[i].url}: ${error.message}`;
    why.push({ mirror: mirrors[i].url, kind, message });
    if (kind === "Equivocation" || kind === "Forked") proofs.push(message);
  }
  if (!best) throw new OpenError(why);
  best.notices.push(...proofs);
  const locations = [];
  for (const [i, answer] of answers.entries()) {
    if (answer.status !== "fulfilled") continue;
    const { index } = answer.value.file;
    const known2 = locations.find((one) => equal(one.digest, index.digest) && one.bytes === index.bytes);
    if (known2) known2.by.push(mirrors[i]);
    else if (answer.value === best) locations.unshift({ ...index, by: [mirrors[i]] });
    else locations.push({ ...index, by: [mirrors[i]] });
  }
  const several = new Mirrors(mirrors, options.onDrop ?? (() => {
  }));
  return new Release(best, new Blocks(best.accepted.record.digestKey, several, locations), now, why.map((one) => one.message), firstVisit);
}
var Release = class {
  constructor(admitted, blocks, now, refused, firstVisit) {
    this.admitted = admitted;
    this.blocks = blocks;
    this.now = now;
    this.refused = refused;
    this.firstVisit = firstVisit;
  }
  admitted;
  blocks;
  now;
  refused;
  firstVisit;
  /** What was signed, by whom, and until when it counts. */
  status() {
    const { accepted, chain, file, notices } = this.admitted;
    const signed = file.record.signatures;
    return {
      id: hex(chain.id),
      sequence: accepted.record.sequence,
      issuedS: accepted.record.issuedS,
      validUntilS: accepted.validUntilS,
      note: plain(accepted.record.note),
      threshold: chain.current.role.threshold,
      keys: chain.current.role.keys.map((key2) => ({
        fingerprint: fingerprint(key2),
        signed: signed.some((one) => equal(one.key, key2))
      })),
      keySet: chain.current.number,
      renewedBy: (file.renewal?.signatures ?? []).map(({ key: key2 }) => fingerprint(key2)),
      certificates: chain.current.certificates,
      warnings: accepted.warnings,
      notices
    };
  }
  /** Mirrors that sent something false. */
  get drops() {
    return this.blocks.mirrors.drops;
  }
  /** Where a path leads, through symbolic links. That there is nothing is proven, not believed. */
  async lookup(path, follow = true) {
    this.#counts();
    return this.#at(shown(path), (source) => this.#resolve(source, names(path), follow));
  }
  /** At most `limit` names of a directory after `after`, in order of bytes. */
  async list(path, after = null, limit = PAGE) {
    const inode = await this.#there(path);
    const { content } = inode;
    if (content.is !== "directory") throw new PathError(shown(path), false, `it is a ${inode.kind}, and has no names`);
    const total = content.map?.entries ?? 0n;
    if (inode.opaque) return { entries: [], total, opaque: true };
    return this.#at(shown(path), async (source) => {
      const found = (await range(source, content.map, after, limit)).map(({ key: key2, value }) => {
        if (!isName(key2)) throw new Malformed(`${shownName(key2)} is no name`);
        return { name: key2, entry: readEntry(value) };
      });
      await source.prefetch(found.flatMap(({ entry }) => "kind" in entry.slot ? [] : [entry.slot]));
      const entries = [];
      for (const { name, entry } of found) entries.push(listed2(name, await inodeOf(source, entry)));
      return { entries, total, opaque: false };
    });
  }
  /** Attributes of what a path leads to. Throws if there is nothing. */
  async stat(path) {
    const inode = await this.#there(path);
    return listed2(names(path).at(-1) ?? new Uint8Array(), inode);
  }
  /** The bytes of a file from `start` to `end`, in pieces, each verified before it is given out. */
  async *readFile(path, start = 0n, end) {
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
  async *walk(path = "") {
    const top = names(path);
    if (top.length > DEPTH_MAX2) throw new PathError(shown(path), false, "it is deeper than any path that is followed");
    for (let after = null; ; ) {
      const { entries } = await this.list(top, after);
      for (const entry of entries) {
        yield { path: [...top, entry.name], entry };
        if (entry.kind === "directory") yield* this.walk([...top, entry.name]);
      }
      if (entries.length < PAGE) return;
      after = entries.at(-1).name;
    }
  }
  /** What is different from the release before, as far as a mirror still has that. */
  async *changes() {
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
          return [file, mirror];
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
    if (this.blocks.locations.every((known2) => !equal(known2.digest, index.digest))) {
      this.blocks.locations.push({ ...index, by: [giver] });
    }
    try {
      yield* changes(source, before.record.value.rootDir, record.rootDir);
    } catch (error) {
      throw this.#named("what changed since the last release", error);
    }
  }
  async #there(path) {
    const found = await this.lookup(path);
    if (found.is === "there") return found.inode;
    const why = found.is === "outside" ? "it leads out of the release" : "it is provably not in the release";
    throw new PathError(shown(path), false, why);
  }
  async #resolve(source, wanted, follow) {
    const rest = [...wanted].reverse();
    const way = [{ name: new Uint8Array(), inode: await loadInode(source, this.admitted.accepted.record.rootDir) }];
    if (way[0].inode.kind !== "directory") throw new Malformed("the top is no directory");
    const path = () => way.slice(1).map(({ name }) => name);
    let links = 0;
    for (let name = rest.pop(); name; name = rest.pop()) {
      if (equal(name, utf8(".."))) {
        way.pop();
        if (way.length === 0) return { is: "outside" };
        continue;
      }
      const { content } = way.at(-1).inode;
      if (content.is !== "directory") return { is: "absent", below: shown(path()) };
      const value = isName(name) ? await get(source, content.map, name) : null;
      if (!value) return { is: "absent", below: shown(path()) };
      const inode = await inodeOf(source, readEntry(value));
      if (inode.content.is === "target" && (follow || rest.length > 0)) {
        if (++links > LINKS_MAX) throw new Malformed("too many symbolic links in a row");
        const target = inode.content.target;
        if (target[0] === 47) return { is: "outside" };
        rest.push(...split2(target).reverse());
      } else {
        way.push({ name, inode });
      }
    }
    return { is: "there", inode: way.at(-1).inode, path: path() };
  }
  /** After its end nothing more is looked up. */
  #counts() {
    const { validUntilS, warnings } = this.admitted.accepted;
    if (this.now() > validUntilS && !warnings.some((warning) => warning.kind === "Stale")) {
      throw new Refusal("Expired", `the release expired at ${moment(validUntilS)} while this page was open; load it again`);
    }
  }
  async #at(path, work) {
    try {
      return await work(this.blocks.for(path));
    } catch (error) {
      throw this.#named(path, error);
    }
  }
  /** The error with the name of the file that it is about. */
  #named(path, error) {
    if (error instanceof Malformed) return new PathError(path, true, error.message);
    if (error instanceof MirrorError) {
      const isFalse = error.kind === "Wrong";
      const head = isFalse ? "what the mirror sent is not what the publisher signed: " : "";
      return new PathError(path, isFalse, head + error.message);
    }
    return error;
  }
};
function split2(path) {
  const parts = [];
  for (let from = 0, at = 0; at <= path.length; at++) {
    if (at === path.length || path[at] === 47) {
      parts.push(path.subarray(from, at));
      from = at + 1;
    }
  }
  return names(parts);
}
function listed2(name, inode) {
  const target = inode.content.is === "target" ? inode.content.target : null;
  const { kind, size, mode, opaque } = inode;
  return { name, kind, size, mode, modifiedS: inode.modifiedNs / 1000000000n, target, opaque };
}
export {
  KeyChain,
  Malformed,
  MemoryError,
  MirrorError,
  OpenError,
  PathError,
  Refusal,
  Release,
  RevokedError,
  WELL_KNOWN,
  accept,
  diff,
  digest,
  fingerprint,
  get,
  hex,
  mirrorUrl,
  moment,
  names,
  open2 as open,
  openBlock,
  range,
  readEntry,
  readKeysFile,
  readRootFile,
  shown,
  shownName,
  span,
  unhex,
  verifyRevocation,
  verify as verifySignature
};
