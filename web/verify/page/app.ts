// The page: asks for a release, shows what was checked, and lets people look around in it.

import { Refusal } from "../src/form.ts";
import { moment } from "../src/moment.ts";
import { type Drop, mirrorUrl } from "../src/mirrors.ts";
import { names, shown, shownName } from "../src/names.ts";
import { type Listed, PathError, Release, open } from "../src/release.ts";
import { changesView, checkView } from "./work.ts";
import { banner, button, byId, element, rests, size } from "./dom.ts";
import { download, preview } from "./preview.ts";
import { type Where, read, write } from "./where.ts";

const PAGE = 200;
const FOUND_MAX = 200;

let where: Where = { id: "", mirrors: [], path: [] };
let release: Release | null = null;
/** Whether something was shown before, so that who follows a link by keyboard goes on from there. */
let moved = false;
/** What is opened, so that what has come too late is not shown. */
let turn = 0;
/** What is false, by the file that it is in; told until the page is left. */
let falses = new Map<string, string>();

const form = byId<HTMLFormElement>("open");
const view = byId("view");
const stop = byId<HTMLButtonElement>("stop");

async function start(): Promise<void> {
  const next = read(location.hash);
  const same = release && next.id === where.id && next.mirrors.join() === where.mirrors.join();
  where = next;
  if (same) return show();
  release = null;
  falses = new Map();
  const mine = ++turn;
  byId("release").hidden = true;
  byId("status").replaceChildren();
  form.hidden = Boolean(where.id && where.mirrors.length > 0);
  byId<HTMLInputElement>("id").value = where.id;
  byId<HTMLTextAreaElement>("mirrors").value = where.mirrors.join("\n");
  origin();
  if (!form.hidden) return;
  byId("status").replaceChildren(banner("plain", "Looking at keys and records..."));
  try {
    const mirrors = where.mirrors.map((mirror) => mirrorUrl(mirror, location.href) ?? mirror);
    const storage = storageOf();
    // Drops of a release that was left are not this one's.
    const told = falses;
    const opened = await open(mirrors, where.id, { storage, onDrop: (drop) => told === falses && onDrop(drop) });
    if (mine !== turn) return;
    release = opened;
  } catch (error) {
    if (mine !== turn) return;
    form.hidden = false;
    return fail("This release is refused.", error);
  }
  byId("release").hidden = false;
  about();
  byId("changes").replaceChildren(button("Compare", () => release && changesView(byId("changes"), release, link, failed)));
  byId("check").replaceChildren(button("Check", () => release && checkView(byId("check"), release, failed)));
  status();
  await show();
}

/** Where it is remembered what was seen. Without it an older release could pass for the newest, so there is no going on. */
function storageOf(): Storage {
  try {
    return localStorage;
  } catch {
    throw new Error("this browser does not let the page remember what it has seen, so an older release could pass for the newest");
  }
}

function onDrop(drop: Drop): void {
  falses.set(drop.path ?? "what a mirror says of itself", `${drop.mirror}: ${drop.why}`);
  if (release) status();
}

/** What is false is told at the top, too, with the name of the file. */
function failed(error: unknown): void {
  if (error instanceof PathError && error.isFalse) falses.set(error.path, error.why);
  status();
}

function fail(head: string, error: unknown): void {
  const lines = (error instanceof Error ? error.message : String(error)).split("\n");
  byId("status").replaceChildren(banner("bad", head, ...lines));
}

/** What was checked, and what was wrong. */
function status(): void {
  if (!release) return;
  const { sequence, validUntilS, keys, threshold, warnings, notices } = release.status();
  const signed = keys.filter((key) => key.signed).length;
  const lost = release.blocks.mirrors.all.every((mirror) => mirror.dropped);
  const banners = [];
  if (falses.size > 0) {
    const files = [...falses].map(([path, why]) => element("span", {}, element("strong", {}, path || "the top directory"), ` - ${why}`));
    const head = lost
      ? "What the mirror sent is NOT what the publisher signed."
      : "A mirror sent what the publisher did NOT sign. It was dropped; what you see came from another, and is verified.";
    banners.push(banner(lost ? "bad" : "warn", head, ...files));
  }
  const warned = [...warnings.map((one) => one.text), ...notices, ...release.refused.map((why) => `A mirror is not used: ${why}`)];
  if (warned.length > 0) banners.push(banner("warn", "Please note", ...warned));
  if (!lost) {
    const { verifiedBlocks, verifiedBytes } = release.blocks;
    banners.push(
      banner(
        "good",
        `Verified: release ${sequence}, current until ${moment(validUntilS)}.`,
        `Signed by ${signed} of ${keys.length} ${keys.length === 1 ? "key" : "keys"} (${threshold} must sign), by keys that follow from its ID.`,
        release.firstVisit
          ? "This browser sees this release for the first time; from now on it refuses anything older."
          : "Not older than what this browser has seen before.",
        `All that is shown was checked here against what was signed: so far ${verifiedBlocks} blocks, ${size(verifiedBytes)}.`,
      ),
    );
  }
  byId("status").replaceChildren(...banners);
}

function about(): void {
  const found = release!.status();
  const facts: [string, Node | string][] = [
    ["ID", element("span", { class: "mono" }, found.id)],
    ["Release", String(found.sequence)],
    ["Signed", moment(found.issuedS)],
    ["Counts until", moment(found.validUntilS)],
    ["Key set", `${found.keySet}, of which ${found.threshold} of ${found.keys.length} must sign`],
  ];
  if (found.note) facts.splice(1, 0, ["Title", found.note]);
  for (const key of found.keys) {
    facts.push([key.signed ? "Signed by" : "Did not sign", element("span", { class: "mono" }, key.fingerprint)]);
  }
  for (const key of found.renewedBy) facts.push(["Renewed by", element("span", { class: "mono" }, key)]);
  if (found.certificates) facts.push(["Purpose", "a directory of certificates, never used after it has expired"]);
  for (const mirror of release!.blocks.mirrors.all) facts.push(["Mirror", element("span", { class: "mono" }, mirror.url)]);
  byId("about").replaceChildren(...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  byId("title").textContent = found.note || `Release ${found.id.slice(0, 16)}`;
  document.title = `${found.note || found.id.slice(0, 16)} - Holdfast release`;
}

/** Who vouches for this page. */
function origin(): void {
  const mirrors = where.mirrors.map((mirror) => mirrorUrl(mirror, location.href)).filter((url) => url !== null);
  const own = mirrors.some((mirror) => new URL(mirror).origin === location.origin);
  const text = own
    ? "This page came from the mirror itself, which cannot vouch for itself: a false mirror would send a false page. Open it from " +
      "somewhere you trust, or save a copy."
    : "This page is what checks the release. It is as good as the place you have it from, " +
      (location.protocol === "file:" ? "a file on this device." : `${location.origin}.`);
  byId("origin").replaceChildren(own ? banner("warn", text) : text);
}

function link(path: Uint8Array[], text: string): HTMLAnchorElement {
  return element("a", { href: write({ ...where, path }) }, text);
}

async function show(): Promise<void> {
  const mine = ++turn;
  const opened = release!;
  const { path } = where;
  stop.hidden = true;
  const crumbs: (Node | string)[] = [link([], "top")];
  path.forEach((name, i) => {
    const text = shownName(name);
    const isLast = i + 1 === path.length;
    crumbs.push(" / ", isLast ? element("span", { "aria-current": "page" }, text) : link(path.slice(0, i + 1), text));
  });
  byId("place").replaceChildren(...crumbs);
  view.replaceChildren(element("p", { class: "soft" }, "Fetching..."));
  try {
    const made = await content(opened, path, () => mine === turn);
    if (mine !== turn) return;
    view.replaceChildren(...made);
    if (moved) view.focus({ preventScroll: true });
    moved = true;
  } catch (error) {
    if (mine !== turn) return;
    refuse(error);
  }
  status();
}

function refuse(error: unknown): void {
  failed(error);
  const isFalse = error instanceof PathError && error.isFalse;
  const head = isFalse ? "This is not what the publisher signed, so it is not shown." : "This cannot be shown.";
  const mood = isFalse || error instanceof Refusal ? "bad" : "warn";
  view.replaceChildren(banner(mood, head, error instanceof Error ? error.message : String(error)));
}

async function content(opened: Release, path: Uint8Array[], current: () => boolean): Promise<Node[]> {
  const found = await opened.lookup(path);
  if (found.is === "absent") {
    const why = `The directory ${found.below || "at the top"} has no such name, by what the publisher signed.`;
    return [banner("plain", `${shown(path)} is provably not in this release.`, why)];
  }
  if (found.is === "outside") return [banner("plain", `${shown(path)} leads out of the release, to where nothing is signed.`)];
  const about = await opened.stat(path);
  const name = path.at(-1) ?? new Uint8Array();
  if (about.kind === "directory") return directory(opened, path, current);
  if (about.kind === "file") return file(opened, path, { ...about, name });
  return [element("p", {}, `${shownName(name)} is a ${about.kind}.`)];
}

async function directory(opened: Release, path: Uint8Array[], current: () => boolean): Promise<Node[]> {
  const { entries, total, opaque } = await opened.list(path, null, PAGE);
  if (opaque) {
    const how = `It has ${total}. Look one up above; the answer is proven either way.`;
    return [banner("plain", "This directory does not show its names.", how)];
  }
  if (total === 0n) return [element("p", { class: "soft" }, "This directory is empty.")];
  const rows = element("tbody");
  const titles = [["name", "Name"], ["size", "Size"], ["time", "Changed"]];
  const head = element("tr", {}, ...titles.map(([name, title]) => element("th", { class: name! }, title!)));
  const table = element("table", {}, element("thead", {}, head), rows);
  const count = element("span", { class: "soft" });
  let last: Uint8Array | null = null;
  let listed = 0;
  const add = (more: Listed[]) => {
    rows.append(...more.map((entry) => row([...path, entry.name], entry, shownName(entry.name))));
    listed += more.length;
    last = more.at(-1)?.name ?? last;
    count.textContent = BigInt(listed) < total ? `${listed} of ${total} names` : `${total} ${total === 1n ? "name" : "names"}`;
    next.hidden = more.length < PAGE || BigInt(listed) >= total;
  };
  const next: HTMLButtonElement = button("Show more", async () => {
    next.disabled = true;
    try {
      const more = await opened.list(path, last, PAGE);
      if (current()) add(more.entries);
    } catch (error) {
      if (current()) refuse(error);
    }
    next.disabled = false;
    status();
  });
  add(entries);
  return [table, element("p", { class: "bar" }, next, count)];
}

const MARKS: { [kind: string]: string } = { directory: "▸", link: "↪", file: "" };

function row(path: Uint8Array[], entry: Listed, text: string): HTMLElement {
  const name = element("td", { class: "name" }, element("span", { class: "mark", "aria-hidden": "true" }, MARKS[entry.kind] ?? "∗"));
  name.append(link(path, text + (entry.kind === "directory" ? "/" : "")));
  if (entry.target) name.append(element("span", { class: "soft" }, ` → ${shown([entry.target])}`));
  if (!(entry.kind in MARKS)) name.append(element("span", { class: "soft" }, ` (${entry.kind})`));
  const bytes = element("td", { class: "size" }, entry.kind === "file" ? size(entry.size) : "");
  return element("tr", {}, name, bytes, element("td", { class: "time" }, moment(entry.modifiedS).slice(0, 10)));
}

async function file(opened: Release, path: Uint8Array[], about: Listed): Promise<Node[]> {
  const progress = element("span", { class: "soft", role: "status" });
  const save = button("Download", async () => {
    save.disabled = true;
    try {
      await download(opened, path, about, (text) => (progress.textContent = text));
      status();
    } catch (error) {
      refuse(error);
    }
    save.disabled = false;
  });
  const facts = element("span", { class: "soft" }, `${size(about.size)}, changed ${moment(about.modifiedS)}`);
  return [element("p", { class: "bar" }, save, facts, progress), await preview(opened, path, about)];
}

/** Names below that have `text` in them, as they are found. */
async function search(text: string): Promise<void> {
  const mine = ++turn;
  const opened = release!;
  const rows = element("tbody");
  const note = element("p", { class: "soft", role: "status" }, "Searching...");
  view.replaceChildren(note, element("table", {}, rows));
  stop.hidden = false;
  const wanted = text.toLowerCase();
  const rest = rests();
  let [looked, found] = [0, 0];
  try {
    for await (const { path, entry } of opened.walk(where.path)) {
      await rest();
      if (mine !== turn) return;
      looked++;
      if (shownName(entry.name).toLowerCase().includes(wanted)) {
        found++;
        rows.append(row(path, entry, shown(path.slice(where.path.length))));
      }
      if (looked % 100 === 0) note.textContent = `Searching: ${found} found among ${looked} names...`;
      if (found >= FOUND_MAX) break;
    }
    const first = `The first ${found}; search for more of the name to see others.`;
    note.textContent = found >= FOUND_MAX ? first : `${found} found among ${looked} names.`;
  } catch (error) {
    if (mine === turn) refuse(error);
  }
  if (mine === turn) stop.hidden = true;
  status();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const mirrors = byId<HTMLTextAreaElement>("mirrors").value.split(/\s+/).filter(Boolean);
  const id = byId<HTMLInputElement>("id").value.trim().toLowerCase();
  const next = write({ id, mirrors, path: [] });
  if (next === location.hash) {
    where = { id: "", mirrors: [], path: [] };
    void start();
  } else {
    location.hash = next;
  }
});
byId("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId<HTMLInputElement>("text").value.trim();
  if (text) void search(text);
});
byId("exact").addEventListener("click", () => {
  const name = byId<HTMLInputElement>("text").value;
  if (name) location.hash = write({ ...where, path: [...where.path, ...names(name)] });
});
stop.addEventListener("click", () => {
  turn++;
  stop.hidden = true;
  view.prepend(element("p", { class: "soft" }, "Stopped."));
});
window.addEventListener("hashchange", () => void start());
void start();
