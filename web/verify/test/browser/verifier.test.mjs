// The verifier's page in a real browser: what the real command publishes, from mirrors honest and false.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { Desk, click, hash, pageOf, says } from "./desk.mjs";

const PNG = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGD4DwABBAEAX+XDSwAAAABJRU5ErkJggg==", "base64");
const EVIL = "<script>window.pwned=1;alert(1)</script><img src=x onerror='window.pwned=1'>";
const NAME = "<img src=x onerror=alert(1)>.html";
const LARGE = randomBytes(900_000);

let desk, browser, page, good, trusted;

before(async () => {
  desk = new Desk();
  desk.write("README.md", "# Hello\nthis is *text*\n");
  desk.write("picture.png", PNG);
  desk.write("docs/large.bin", LARGE);
  desk.write("docs/evil.html", EVIL);
  desk.write("docs/evil.svg", `<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><script>alert(1)</script></svg>`);
  desk.write(NAME, "odd");
  desk.write(Buffer.concat([Buffer.from("not utf-8 "), Buffer.from([0xff, 0x1b])]), "odd, too");
  desk.write("names/anna", "her key");
  for (let n = 0; n < 300; n++) desk.write(`many/name ${String(n).padStart(5, "0")}`, "");
  desk.publish("--note", "First", "--opaque", "names");
  desk.write("README.md", "# Hello again\n");
  desk.write("new", "");
  desk.publish("--note", "Second <b>", "--opaque", "names");
  good = await desk.start("serve", "release");
  trusted = await desk.trusted();
  browser = await desk.browser();
  page = await pageOf(browser);
});
after(() => desk?.close());

const go = async (mirrors, path, on = page) => {
  await on.goto("about:blank");
  await on.goto(trusted + hash(desk.id, mirrors, path));
};

test("browse, preview, search, compare, check", async () => {
  await go([good]);
  const text = await says(page, "Verified: release 2");
  assert.match(text, /sees this release for the first time/);
  for (const said of ["Second <b>", "README.md", NAME, "not utf-8 \\xff\\x1b", "1 of 1 must sign", "SHA256:"]) await says(page, said);
  await click(page, "a", "README.md");
  await says(page, "# Hello again");
  await click(page, "a", "top");
  await click(page, "a", "picture.png");
  await page.waitForSelector(".preview img");
  await page.waitForFunction(() => document.querySelector(".preview img").naturalWidth === 1);
  await go([good]);
  await says(page, "Not older than what this browser has seen before");
  await page.type("#text", "00042");
  await click(page, "button", "Search here");
  await says(page, "1 found among");
  await says(page, "many/name 00042");
  await click(page, "button", "Compare");
  const changed = await says(page, "2 changes.");
  assert.match(changed, /README\.md changed/);
  assert.match(changed, /new added/);
  await click(page, "button", "Check");
  await says(page, "Every byte is what the publisher signed: 308 files", 60_000);
  await says(page, "Without what is in 1 directory that does not show names.");
  assert.deepEqual(page.wrongs, []);
});

test("a directory of 100,000 names comes in pages, and keeps nobody waiting", async () => {
  mkdirSync(desk.path("names/all"), { recursive: true });
  for (let n = 0; n < 100_000; n++) writeFileSync(desk.path(`names/all/name-${String(n).padStart(6, "0")}`), "");
  desk.holdfast("publish", "names", "--to", "large", "--key", "key");
  const id = JSON.parse(desk.holdfast("--json", "release", "show", "large")).release;
  const mirror = await desk.start("serve", "large");
  const watched = await pageOf(browser);
  await watched.evaluateOnNewDocument(() => {
    window.longest = 0;
    let last = performance.now();
    setInterval(() => {
      window.longest = Math.max(window.longest, performance.now() - last);
      last = performance.now();
    }, 20);
  });
  await watched.goto(trusted + hash(id, [mirror], "all"));
  await says(watched, "200 of 100000 names");
  assert.equal(await watched.$$eval("tbody tr", (rows) => rows.length), 200);
  await click(watched, "button", "Show more");
  await says(watched, "400 of 100000 names");
  await watched.type("#text", "99999");
  await watched.keyboard.press("Enter");
  await says(watched, "1 found among 100000 names", 60_000);
  // On a busy machine everything takes longer; a page that froze would take seconds.
  assert.ok((await watched.evaluate(() => window.longest)) < 1500);
  await watched.close();
});

test("a download is the verified bytes", async () => {
  const folder = desk.path("downloads");
  mkdirSync(folder);
  const session = await page.createCDPSession();
  await session.send("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: folder });
  await go([good], "docs/large.bin");
  await says(page, "There is no preview");
  await click(page, "button", "Download");
  await says(page, "All of it is verified");
  for (let tries = 0; !readdirSync(folder).includes("large.bin") && tries < 100; tries++) await new Promise((resolve) => setTimeout(resolve, 50));
  assert.ok(readFileSync(`${folder}/large.bin`).equals(LARGE));
});

test("what is not there is proven; an opaque directory is asked for names", async () => {
  await go([good], "docs/gone");
  await says(page, "docs/gone is provably not in this release.");
  await go([good], "names");
  await says(page, "This directory does not show its names.");
  await page.type("#text", "anna");
  await click(page, "button", "Look up this name");
  await says(page, "her key");
});

test("hostile names and content do nothing", async () => {
  for (const [path, said] of [["docs/evil.html", "<script>"], ["docs/evil.svg", "<svg"], [encodeURIComponent(NAME), "odd"]]) {
    await go([good], path);
    await says(page, said);
  }
  assert.equal(await page.evaluate(() => window.pwned), undefined);
  assert.equal(await page.$$eval(".preview img, iframe, svg, b", (found) => found.length), 0);
  assert.deepEqual(page.wrongs, []);
});

test("a corrupted pack shows red, with the file's name; beside an honest mirror it is named and dropped", async () => {
  const bad = await desk.static("release", (name, bytes) => {
    const at = name.startsWith("packs/") ? bytes.indexOf(LARGE.subarray(100_000, 100_064)) : -1;
    return at < 0 ? bytes : Buffer.concat([bytes.subarray(0, at), Buffer.from("x"), bytes.subarray(at + 1)]);
  });
  await go([bad], "docs/large.bin");
  const text = await says(page, "This is not what the publisher signed");
  assert.match(text, /docs\/large\.bin/);
  assert.equal(await page.$eval("#status .banner.bad", (one) => one.innerText.includes("docs/large.bin")), true);
  assert.equal(await page.$("#status .banner.good"), null);
  await go([bad, good], "docs/large.bin");
  await says(page, "Download");
  await click(page, "button", "Download");
  const both = await says(page, "All of it is verified");
  assert.match(both, /It was dropped/);
  assert.ok(both.includes(bad));
  await page.$("#status .banner.good").then((found) => assert.ok(found));
});

test("a wrong ID, and a mirror that does not let pages read it", async () => {
  const wrong = desk.id.replace(/^./, (one) => (one === "0" ? "1" : "0"));
  await page.goto("about:blank");
  await page.goto(trusted + hash(wrong, [good]));
  await says(page, "the key set is of the release");
  assert.ok(await page.$("#status .banner.bad"));
  const closed = await desk.static("release", (_, bytes) => bytes, {});
  await go([closed]);
  await says(page, "does not allow pages of other origins to read it");
});

test("the form opens a release", async () => {
  await page.goto("about:blank");
  await page.goto(trusted);
  await page.type("#id", desk.id.toUpperCase());
  await page.type("#mirrors", good);
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await says(page, "Verified: release 2");
});

test("a mirror's own page says that it cannot vouch for itself", async () => {
  const mirror = await desk.static();
  await page.goto("about:blank");
  await page.goto(`${mirror}page.html${hash(desk.id, [mirror])}`);
  await says(page, "cannot vouch for itself");
  await says(page, "Verified: release 2");
});

test("an older release is refused on the second visit, an expired one at once", async () => {
  const old = await desk.static("release", (name, bytes) => (name === "root" ? readFileSync(desk.path("release/records/1")) : bytes));
  await go([old]);
  await says(page, "it is behind, or rolls back");
  assert.equal(await page.$("#status .banner.good"), null);
  mkdirSync(desk.path("short"));
  writeFileSync(desk.path("short/file"), "soon old");
  desk.holdfast("publish", "short", "--to", "brief", "--key", "key", "--expires", "2s");
  const mirror = await desk.static("brief");
  const id = /[0-9a-f]{64}/.exec(desk.holdfast("--json", "release", "show", "brief"))[0];
  await new Promise((resolve) => setTimeout(resolve, 3000));
  await page.goto("about:blank");
  await page.goto(trusted + hash(id, [mirror]));
  await says(page, "the release expired at");
  assert.ok(await page.$("#status .banner.bad"));
});

test("on a phone nothing is wider than the page", async () => {
  const phone = await pageOf(browser);
  await phone.setViewport({ width: 360, height: 740, isMobile: true, hasTouch: true });
  await go([good], "", phone);
  await says(phone, "Verified: release 2");
  await says(phone, "README.md");
  assert.ok(await phone.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth));
  assert.deepEqual(phone.wrongs, []);
  await phone.close();
});
