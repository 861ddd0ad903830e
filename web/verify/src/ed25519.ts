// Signatures, judged exactly as the Rust client judges them (dalek's `verify_strict`): no key and no nonce of small order, the
// one form of each number, and the equation itself, not eight times it.

import { ed25519 } from "@noble/curves/ed25519.js";
import { sha512 } from "@noble/hashes/sha2.js";
import { concat, equal } from "./bytes.ts";

const { Point } = ed25519;
const ORDER = Point.Fn.ORDER;

function number(bytes: Uint8Array): bigint {
  let value = 0n;
  for (let i = bytes.length - 1; i >= 0; i--) value = (value << 8n) | BigInt(bytes[i]!);
  return value;
}

/** Whether `signature` is that of `key` over `message`. Never throws. */
export function verify(key: Uint8Array, message: Uint8Array, signature: Uint8Array): boolean {
  if (key.length !== 32 || signature.length !== 64) return false;
  const nonceBytes = signature.subarray(0, 32);
  const s = number(signature.subarray(32));
  if (s >= ORDER) return false;
  try {
    // The key is taken as it stands and digested as it stands; the nonce must be what comes out, byte for byte.
    const point = Point.fromBytes(key, true);
    const k = number(sha512(concat(nonceBytes, key, message))) % ORDER;
    const ofBase = s === 0n ? Point.ZERO : Point.BASE.multiply(s);
    const nonce = ofBase.subtract(k === 0n ? Point.ZERO : point.multiplyUnsafe(k));
    return !point.isSmallOrder() && !nonce.isSmallOrder() && equal(nonce.toBytes(), nonceBytes);
  } catch {
    return false;
  }
}
