// A whole release, as the Rust publisher makes it, read from mirrors that are served from memory: honest ones and others.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, beforeEach, test } from "node:test";
import { WELL_KNOWN, digest as digestOf, hex, names, open, shown, shownName, unhex } from "../dist/verify.js";

const release = JSON.parse(readFileSync(new URL("../vectors/release.json", import.meta.url), "utf8"));
const good = new Map(Object.entries(release.files).map(([name, digits]) => [name, unhex(digits)]));
const GOOD = "https://good.example/";
const BAD = "https://bad.example/some/where/";

const honest = globalThis.fetch;
const digest = (bytes) => digestOf(WELL_KNOWN, 44, bytes);
/** What each mirror has; a function may answer as it likes. */
let mirrors;
let asked;

function serve(files, name, range) {
  const bytes = files.get(name);
  if (!bytes) return new Response("", { status: 404 });
  const [, start, end] = /^bytes=(\d+)-(\d+)$/.exec(range ?? "") ?? [];
  return range ? new Response(bytes.slice(Number(start), Number(end) + 1), { status: 206 }) : new Response(bytes);
}

globalThis.fetch = async (url, options) => {
  const mirror = Object.keys(mirrors).find((one) => url.startsWith(one));
  if (!mirror) throw new TypeError("no such host");
  asked.push(url);
  const [files, name, range] = [mirrors[mirror], url.slice(mirror.length), options.headers.Range];
  return typeof files === "function" ? files(name, range, options) : serve(files, name, range);
};
after(() => (globalThis.fetch = honest));

function storage() {
  const kept = new Map();
  return { kept, getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) };
}

beforeEach(() => {
  mirrors = { [GOOD]: good };
  asked = [];
});

const opened = (urls = [GOOD], options = {}) =>
  open(urls, release.id, { storage: storage(), now: () => BigInt(release.now), ...options });

async function bytesOf(from, path, ...range) {
  const parts = [];
  for await (const part of from.readFile(path, ...range)) parts.push(part);
  return Buffer.concat(parts);
}

/** The mirror's files, some of them others. */
const but = (changes) => new Map([...good, ...Object.entries(changes)]);
const flipped = (name, at) => {
  const bytes = good.get(name).slice();
  bytes[at] ^= 1;
  return bytes;
};
const packs = [...good.keys()].filter((name) => name.startsWith("packs/"));

test("status, listings and attributes", async () => {
  const it = await opened();
  const status = it.status();
  assert.equal(status.sequence, 2n);
  assert.equal(status.note, "version 2");
  assert.deepEqual([status.threshold, status.keys.length, status.keys.filter((key) => key.signed).length], [2, 3, 2]);
  assert.ok(status.keys.every((key) => /^SHA256:[A-Za-z0-9+/]{43}$/.test(key.fingerprint)));
  const top = await it.list("");
  assert.deepEqual(
    top.entries.map((entry) => `${entry.kind} ${shownName(entry.name)}`),
    ["file <b>&\\xe2\\x80\\xae", "file again", "directory files", "link link", "directory many", "directory names", "file not \\xff utf-8", "link out", "link round"],
  );
  const all = [];
  for (let last = null; ; ) {
    const { entries, total } = await it.list("many", last, 70);
    assert.equal(total, 301n);
    if (entries.length === 0) break;
    all.push(...entries.map((entry) => shownName(entry.name)));
    last = entries.at(-1).name;
  }
  assert.equal(new Set(all).size, 301);
  assert.deepEqual([...all].sort(), all);
  assert.deepEqual(await it.list("names"), { entries: [], total: 1n, opaque: true });
  const stat = await it.stat("files/sparse");
  assert.deepEqual([stat.kind, stat.size, stat.mode, stat.modifiedS], ["file", 3145728n, 0o644, 1_000_000_000n]);
});

test("content: in the inode, in chunks, holes, through links, in part", async () => {
  const it = await opened();
  assert.equal(String(await bytesOf(it, "many/name 007")), "number 7\n");
  assert.equal(String(await bytesOf(it, "names/anna")), "her key");
  assert.equal(String(await bytesOf(it, names("").concat([Uint8Array.from(Buffer.from("not \xff utf-8", "latin1"))]))), "odd");
  const lines = Buffer.from("a line\n".repeat(100_000));
  for (const path of ["files/lines", "link", "again", "./files/../link"]) assert.ok((await bytesOf(it, path)).equals(lines), path);
  const sparse = Buffer.alloc(3 << 20);
  for (let n = 0; n < 20; n++) sparse.fill(n + 1, n * 131072, n * 131072 + 4096);
  assert.ok((await bytesOf(it, "files/sparse")).equals(sparse));
  for (const [start, end] of [[0, 1], [4000, 5000], [131071, 131073], [131072 * 19, 3 << 20], [3 << 20, 4 << 20], [200_000, 900_000]]) {
    assert.ok((await bytesOf(it, "files/sparse", BigInt(start), BigInt(end))).equals(sparse.subarray(start, end)), `${start}`);
  }
});

test("what is not there is proven not to be; what leads out is said to", async () => {
  const it = await opened();
  for (const [path, below] of [["many/name 007x", "many"], ["gone/deeper", ""], ["names/bert", "names"], ["many/..x", "many"], ["again/x", "again"]]) {
    assert.deepEqual(await it.lookup(path), { is: "absent", below }, path);
  }
  for (const path of ["out", "files/up", "..", "files/../.."]) assert.equal((await it.lookup(path)).is, "outside", path);
  await assert.rejects(it.lookup("round"), /too many symbolic links/);
  await assert.rejects(bytesOf(it, "gone"), /gone: it is provably not in the release/);
  await assert.rejects(bytesOf(it, "files"), /files: it is a directory/);
});

test("what changed since the release before", async () => {
  const it = await opened();
  const found = [];
  for await (const { path, what } of it.changes()) found.push(`${what} ${shown(path)}`);
  assert.deepEqual(found, ["removed files/empty", "changed many/name 150", "added many/new"]);
  mirrors[GOOD] = but({ "records/1": flipped("records/1", 60) });
  await assert.rejects(async () => {
    for await (const one of (await opened()).changes()) assert.fail(one);
  }, /records\/1: .*signed/);
});

test("any bit of any pack that is another is found out, with the name of the file, or was not needed", async () => {
  const it = await opened();
  const whole = [];
  for await (const { path, entry } of it.walk()) if (entry.kind === "file") whole.push([path, await bytesOf(it, path)]);
  assert.equal(whole.length, 306);
  for (const pack of packs) {
    const length = good.get(pack).length;
    for (let at = 8; at < length; at += Math.ceil(length / 16)) {
      mirrors[GOOD] = but({ [pack]: flipped(pack, at) });
      const bad = await opened();
      for (const [path, bytes] of whole) {
        try {
          assert.ok((await bytesOf(bad, path)).equals(bytes));
        } catch (error) {
          assert.equal(error.name, "PathError");
          assert.ok(error.message.startsWith(shown(path)), error.message);
          break;
        }
      }
    }
  }
});

test("a bad mirror is named and dropped, and everything is had from the other", async () => {
  for (const pack of packs) {
    mirrors = { [BAD]: but({ [pack]: good.get(pack).map((byte, at) => (at < 44 ? byte : byte ^ 1)) }), [GOOD]: good };
    const told = [];
    const it = await opened([BAD, GOOD], { onDrop: (drop) => told.push(drop) });
    for await (const { path, entry } of it.walk()) if (entry.kind === "file") await bytesOf(it, path);
    assert.ok(it.drops.length === 0 || it.drops.every((drop) => drop.mirror === BAD && drop.why.includes("packs/")));
    assert.deepEqual(told, it.drops);
  }
  assert.ok(asked.some((url) => url.startsWith(GOOD + "packs/")));
});

test("mirrors that misbehave are refused in bounded time and memory", async () => {
  const endless = () => new Response(new ReadableStream({ pull: (to) => to.enqueue(new Uint8Array(65536)) }));
  const cases = {
    "sends without end": (name) => (name === "root" ? endless() : serve(good, name)),
    "not found": () => new Response("", { status: 404 }),
    "out of order": () => new Response("", { status: 503 }),
    "cut short": (name) => (name === "root" ? new Response(good.get("root").slice(0, 100)) : serve(good, name)),
    "something else": (name) => (name === "root" ? new Response("<html>") : serve(good, name)),
    "mixed up": (name) => (name === "root" ? serve(good, "keys/1") : serve(good, name)),
  };
  for (const [what, mirror] of Object.entries(cases)) {
    mirrors = { [BAD]: mirror };
    await assert.rejects(opened([BAD]), (error) => error.name === "OpenError" && error.message.includes(BAD), what);
    mirrors = { [BAD]: mirror, [GOOD]: good };
    assert.equal((await opened([BAD, GOOD])).status().sequence, 2n, what);
  }
  // Ranges that are ignored, short, or others.
  const ranges = {
    ignored: (name, range) => serve(good, name, range && null),
    short: (name, range) => (range ? new Response(good.get(name).slice(0, 3), { status: 206 }) : serve(good, name)),
    others: (name, range) => serve(good, name, range && "bytes=0-99"),
    endless: (name, range) => (range ? endless() : serve(good, name)),
  };
  for (const [what, mirror] of Object.entries(ranges)) {
    mirrors = { [BAD]: mirror };
    const it = await opened([BAD]);
    const reading = bytesOf(it, "many/name 007");
    if (what === "ignored") assert.equal(String(await reading), "number 7\n");
    else await assert.rejects(reading, (error) => error.name === "PathError", what);
  }
});

test("an index that lies keeps blocks from being found, and no more", async () => {
  const indexes = [...good.keys()].filter((one) => one.startsWith("index/"));
  const lies = Object.fromEntries(indexes.map((name) => [name, flipped(name, good.get(name).length - 1)]));
  mirrors[GOOD] = but(lies);
  const it = await opened();
  await assert.rejects(it.list(""), (error) => error.name === "PathError" && error.message.includes("index/"));
  mirrors = { [BAD]: but(lies), [GOOD]: good };
  const both = await opened([BAD, GOOD]);
  assert.equal((await both.list("")).entries.length, 9);
  assert.deepEqual(both.drops.map((drop) => drop.mirror), [BAD]);

  // One that is whole and wrong, named by a false mirror: nobody else is to blame for it.
  const index = indexes.map((name) => [name, good.get(name)]).find(([name]) => Buffer.from(good.get("root")).includes(unhex(name.slice(6))));
  const moved = Uint8Array.from(index[1]);
  const view = new DataView(moved.buffer);
  for (let at = moved.length - 28; at > moved.length / 2; at -= 28) view.setUint32(at + 20, view.getUint32(at + 20, true) ^ 1, true);
  const name = digest(moved);
  const root = Buffer.from(good.get("root"));
  const bad = but({ [`index/${hex(name)}`]: moved });
  bad.set("root", Uint8Array.from(Buffer.concat([root.subarray(0, root.indexOf(unhex(index[0].slice(6)))), name, root.subarray(root.indexOf(unhex(index[0].slice(6))) + 32)])));
  for (const order of [[BAD, GOOD], [GOOD, BAD]]) {
    mirrors = { [BAD]: bad, [GOOD]: good };
    const it = await opened(order);
    for await (const { path, entry } of it.walk()) if (entry.kind === "file") await bytesOf(it, path);
    assert.ok(it.drops.every((drop) => drop.mirror === BAD), JSON.stringify(it.drops));
  }
});

test("nothing older than what was seen; two of one number; no later than it says; forgetting is an error", async () => {
  const memory = storage();
  const first = new Map([...good, ["root", good.get("records/1")]]);
  mirrors[GOOD] = first;
  assert.equal((await opened([GOOD], { storage: memory })).firstVisit, true);
  mirrors[GOOD] = good;
  const second = await opened([GOOD], { storage: memory });
  assert.deepEqual([second.firstVisit, second.status().sequence], [false, 2n]);
  mirrors[GOOD] = first;
  await assert.rejects(opened([GOOD], { storage: memory }), (error) => error.why[0].kind === "Rollback");
  mirrors[GOOD] = good;
  const late = () => BigInt(release.now) + 40n * 86_400n;
  await assert.rejects(opened([GOOD], { storage: memory, now: late }), (error) => error.why[0].kind === "Expired");
  const stale = await opened([GOOD], { storage: memory, now: late, allowStale: true });
  assert.deepEqual(stale.status().warnings.map((warning) => warning.kind), ["Stale"]);
  const behind = await opened([GOOD], { storage: memory, now: () => 0n });
  assert.deepEqual(behind.status().warnings.map((warning) => warning.kind), ["ClockBehind"]);
  let clock = BigInt(release.now);
  const running = await opened([GOOD], { now: () => clock });
  await running.list("");
  clock = late();
  await assert.rejects(running.list(""), (error) => error.kind === "Expired");
  const [key] = memory.kept.keys();
  memory.kept.set(key, memory.kept.get(key).replace(/[0-9a-f]/, "g"));
  await assert.rejects(opened([GOOD], { storage: memory }), (error) => error.name === "MemoryError");
  await assert.rejects(opened([GOOD], { storage: { getItem: () => null, setItem: () => { throw new Error("full"); } } }), (error) => error.name === "MemoryError");
  await assert.rejects(openedAs(release.id.replace(/^./, (one) => (one === "0" ? "1" : "0"))), (error) => error.why[0].kind === "WrongId");
});

const openedAs = (id) => open([GOOD], id, { storage: storage(), now: () => BigInt(release.now) });

test("a revocation ends it for good, and a false one does not", async () => {
  const { cases } = JSON.parse(readFileSync(new URL("../vectors/revocations.json", import.meta.url), "utf8"));
  const memory = storage();
  mirrors[GOOD] = but({ revoked: unhex(cases.find((one) => one.verdict === "TooFew").file) });
  const it = await opened([GOOD], { storage: memory });
  assert.match(it.status().notices[0], /a false revocation, which is ignored/);
  mirrors[GOOD] = but({ revoked: unhex(cases.find((one) => one.verdict === "ok").file) });
  await assert.rejects(opened([GOOD], { storage: memory }), (error) => error.name === "RevokedError" && error.message.includes("stolen"));
  mirrors[GOOD] = good;
  await assert.rejects(opened([GOOD], { storage: memory }), (error) => error.name === "RevokedError" && error.message.includes("remembered"));
});

test("a mirror that is down is not said to be revoked", async () => {
  const down = "https://down.example/";
  for (const answer of [undefined, () => new Response("", { status: 500 })]) {
    mirrors = answer ? { [down]: answer } : {};
    const says = answer ? /: it answers 500/ : /: it cannot be reached/;
    await assert.rejects(opened([down]), (error) => says.test(error.message) && !/: revoked:/.test(error.message));
  }
});
