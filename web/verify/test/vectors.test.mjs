// Holds the verifier to the Rust client: what that accepts and refuses, by the vectors it has made (crates/release/tests/
// web_vectors.rs), is accepted and refused here.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import {
  KeyChain, accept, diff, get, hex, openBlock, range, readEntry, readKeysFile, readRootFile, unhex, verifyRevocation, verifySignature,
} from "../dist/verify.js";

const load = (name) => JSON.parse(readFileSync(new URL(`../vectors/${name}.json`, import.meta.url), "utf8"));

/** The kind of what is thrown; "ok" if nothing is. */
function verdict(work) {
  try {
    work();
    return "ok";
  } catch (error) {
    if (!["Refusal", "Malformed"].includes(error.name)) throw error;
    return error.kind ?? "Malformed";
  }
}

/**
 * Flips of bits are judged as there: `taken` has a sign for the lowest and the highest bit of each byte. Signatures take their
 * time, so `every` looks at some bytes only, with one bit after the other.
 */
function sameFlips(bytes, taken, takes, every = 1) {
  assert.equal(taken.length, bytes.length * 2);
  for (let at = 0; at < bytes.length; at += every) {
    for (const [i, bit] of [0x01, 0x80].entries()) {
      if (every > 1 && i !== (at / every) % 2) continue;
      const changed = bytes.slice();
      changed[at] ^= bit;
      assert.equal(verdict(() => takes(changed)) === "ok" ? "+" : "-", taken[at * 2 + i], `byte ${at}, bit ${bit}`);
    }
  }
}

test("signatures", () => {
  const { message, cases } = load("signatures");
  for (const { name, key, signature, good } of cases) {
    assert.equal(verifySignature(unhex(key), unhex(message), unhex(signature)), good, name);
  }
});

const chainOf = (id, files) => {
  const [first, ...rest] = files.map((file) => readKeysFile(unhex(file)));
  const chain = KeyChain.begin(unhex(id), first);
  for (const set of rest) chain.extend(set);
  return chain;
};

test("key sets", () => {
  const { id, cases, flipped } = load("key-sets");
  for (const { name, files, verdict: expected } of cases) assert.equal(verdict(() => chainOf(id, files)), expected, name);
  sameFlips(unhex(flipped.file), flipped.taken, (bytes) => KeyChain.begin(unhex(id), readKeysFile(bytes)), 5);
});

const seenOf = (seen) =>
  seen && {
    sequence: BigInt(seen.sequence),
    record: unhex(seen.record),
    issuedS: BigInt(seen.issued),
    validity: { fromS: BigInt(seen.validity[0]), untilS: BigInt(seen.validity[1]) },
    latestS: BigInt(seen.latest),
  };

test("records", () => {
  const { cases, flipped } = load("records");
  for (const { name, id, keys, file, seen, now, stale, verdict: expected, warnings, after } of cases) {
    let accepted;
    const judge = () => (accepted = accept(chainOf(id, keys), readRootFile(unhex(file)), seenOf(seen), BigInt(now), stale));
    assert.equal(verdict(judge), expected, name);
    if (expected !== "ok") continue;
    assert.deepEqual(accepted.warnings.map((warning) => warning.kind), warnings, name);
    assert.deepEqual({ ...accepted.seen, record: hex(accepted.seen.record) }, { ...seenOf(after), record: after.record }, name);
  }
  const chain = chainOf(flipped.id, flipped.keys);
  sameFlips(unhex(flipped.file), flipped.taken, (bytes) => accept(chain, readRootFile(bytes), null, BigInt(flipped.now), false), 7);
});

test("revocations", () => {
  const { id, cases } = load("revocations");
  for (const { name, file, verdict: expected } of cases) assert.equal(verdict(() => verifyRevocation(unhex(id), unhex(file))), expected, name);
});

const referenceOf = ({ address, length }) => ({ address: unhex(address), length });

test("blocks", () => {
  const { key, cases, flipped } = load("blocks");
  for (const { name, stored, reference, kind, opens } of cases) {
    assert.equal(verdict(() => openBlock(unhex(key), unhex(stored), referenceOf(reference), kind)) === "ok", opens, name);
  }
  const { stored, reference, kind, taken } = flipped;
  sameFlips(unhex(stored), taken, (bytes) => openBlock(unhex(key), bytes, referenceOf(reference), kind));
});

/** Blocks by address; verified, as everywhere. */
function sourceOf(key, stored) {
  const blocks = new Map(stored.map((one) => [one.slice(0, 64), unhex(one.slice(64))]));
  let fetched = 0;
  return {
    key,
    blocks,
    get fetched() {
      return fetched;
    },
    prefetch: async () => {},
    fetch: async (reference, kind) => {
      fetched++;
      return openBlock(key, blocks.get(hex(reference.address)), reference, kind);
    },
  };
}

const rootOf = (root) => root && { level: root.level, entries: BigInt(root.entries), reference: referenceOf(root.reference) };
const nameOf = (n) => new TextEncoder().encode(`name ${String(n).padStart(5, "0")}`);

test("maps", async () => {
  const { key, blocks, roots, hostile } = load("maps");
  const source = sourceOf(unhex(key), blocks);
  for (const [i, count] of [0, 1, 16, 200, 3000].entries()) {
    const root = rootOf(roots[i]);
    const all = await range(source, root, null, 1e6);
    assert.deepEqual(all.map((entry) => hex(entry.key)), Array.from({ length: count }, (_, n) => hex(nameOf(n))));
    assert.deepEqual(await range(source, root, nameOf(4), 7), all.slice(5, 12));
    for (const n of [0, 15, 199, 2999, 3000]) assert.equal((await get(source, root, nameOf(n))) !== null, n < count, `${n} of ${count}`);
  }
  const differences = [];
  for await (const one of diff(source, rootOf(roots[3]), rootOf(roots[4]))) differences.push(one);
  assert.equal(differences.length, 2800);
  assert.ok(differences.every((one) => one.before === null && one.after !== null));
  const before = source.fetched;
  for await (const one of diff(source, rootOf(roots[4]), rootOf(roots[4]))) assert.fail(one);
  assert.equal(source.fetched, before, "what is the same is not read");

  // Nodes whose digests are right, and which lie.
  for (const { what, root, kind, body, references, taken } of hostile) {
    const bytes = unhex(body);
    const top = rootOf(root);
    const addresses = references.map(unhex);
    for (let at = 0; at < bytes.length; at++) {
      for (const [i, bit] of [0x01, 0x80].entries()) {
        const changed = bytes.slice();
        changed[at] ^= bit;
        const fetch = async (reference, wanted) =>
          reference === top.reference && wanted === kind ? { body: changed, references: addresses } : source.fetch(reference, wanted);
        const found = await range({ ...source, key: unhex(key), fetch }, top, null, 1e6).then(
          () => "+",
          (error) => {
            assert.equal(error.name, "Malformed");
            return "-";
          },
        );
        assert.equal(found, taken[at * 2 + i], `${what}: byte ${at}, bit ${bit}`);
      }
    }
  }
});

test("entries of directories", () => {
  for (const { name, bytes, references, taken } of load("entries")) {
    const value = (changed) => ({ bytes: changed, references: references.map(referenceOf) });
    readEntry(value(unhex(bytes)));
    try {
      sameFlips(unhex(bytes), taken, (changed) => readEntry(value(changed)));
    } catch (error) {
      error.message = `${name}: ${error.message}`;
      throw error;
    }
  }
});
