// Compressed bodies from anybody: whatever is in them, they come to an end soon, and to no more memory than was asked for.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { openBlock, unhex } from "../dist/verify.js";

/** Numbers that are the same every time. */
function numbers(seed) {
  return (below) => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return Math.floor((seed / 2 ** 32) * below);
  };
}

test("frames with bytes that are others are refused, soon, or are the same body", () => {
  const { key, cases } = JSON.parse(readFileSync(new URL("../vectors/blocks.json", import.meta.url), "utf8"));
  for (const { stored, reference, kind } of cases.filter((one) => one.name.startsWith("compressed"))) {
    const good = unhex(stored);
    const number = numbers(1);
    let [longest, same] = [0, 0];
    for (let turn = 0; turn < 200; turn++) {
      const changed = good.slice();
      // Behind the header of the stored block, so that the decompressor sees them.
      for (let times = 1 + number(4); times > 0; times--) changed[10 + number(changed.length - 10)] = number(256);
      const start = Date.now();
      try {
        // Another encoding of the same body is as good as the first; its digest says so.
        openBlock(unhex(key), changed, { address: unhex(reference.address), length: reference.length }, kind);
        same++;
      } catch (error) {
        assert.equal(error.name, "Malformed");
      }
      longest = Math.max(longest, Date.now() - start);
    }
    assert.ok(same < 100, `${same} of 200 were no different`);
    assert.ok(longest < 2000, `${longest} ms`);
  }
});

test("a frame of many blocks that each cost much is refused unread", () => {
  // Blocks of no bytes, a hundred thousand of them.
  const length = 1000;
  const head = [0x28, 0xb5, 0x2f, 0xfd, 0xa0, length & 255, length >> 8, 0, 0];
  const frame = Uint8Array.from([...head, ...new Array(300_000).fill(0)]);
  const stored = new Uint8Array(10 + frame.length);
  new DataView(stored.buffer).setUint32(6, frame.length, true);
  stored.set([1, 1], 0);
  stored.set(frame, 10);
  const began = Date.now();
  assert.throws(() => openBlock(new Uint8Array(32), stored, { address: new Uint8Array(32), length }, 1), /too many blocks/);
  assert.ok(Date.now() - began < 1000);
});
