// The gateway's pages in a real browser, with JavaScript and without.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, symlinkSync, writeFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { Desk, click, pageOf, says } from "./desk.mjs";

const PNG = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGD4DwABBAEAX+XDSwAAAABJRU5ErkJggg==", "base64");
const EVIL = "<!doctype html><script>window.pwned=1;alert(1)</script><img src=x onerror='alert(1)'>";
const NAME = "<img src=x onerror=alert(1)>.html";
const BINARY = randomBytes(300_000);

let desk, browser, gateway, folder;

before(async () => {
  desk = new Desk();
  desk.write("README.md", "# Hello\n\nthis is *text*\n");
  desk.write("picture.png", PNG);
  desk.write("docs/data.bin", BINARY);
  desk.write("docs/evil.html", EVIL);
  desk.write("docs/evil.svg", `<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><script>alert(1)</script></svg>`);
  desk.write(NAME, "odd");
  desk.write(Buffer.concat([Buffer.from("not utf-8 "), Buffer.from([0xff, 0x1b])]), "odd, too");
  for (let n = 0; n < 450; n++) desk.write(`many/name ${String(n).padStart(5, "0")}`, "");
  desk.publish("--note", "First");
  desk.write("README.md", "# Hello again\n");
  desk.publish("--note", "Second <b>");
  gateway = await desk.start("gateway", "release", "--id", desk.id, "--refresh", "1");
  symlinkSync("/etc", desk.path("tree/out"));
  folder = await desk.start("gateway", "tree");
  browser = await desk.browser();
});
after(() => desk?.close());

for (const javascript of [true, false]) {
  test(`browse, preview, search and compare, ${javascript ? "with" : "without"} JavaScript`, async () => {
    const page = await pageOf(browser);
    await page.setJavaScriptEnabled(javascript);
    const text = async (path) => {
      const response = await page.goto(gateway + path);
      assert.match(response.headers()["content-security-policy"] ?? "", /default-src 'none'/);
      return page.$eval("body", (body) => body.textContent);
    };
    const top = await text("");
    for (const said of ["Second <b>", "Release 2, current until", NAME, "not utf-8 \\xff\\x1b", "SHA256:", desk.id]) assert.ok(top.includes(said), said);
    const open = async (name) => {
      const links = await page.$$("main a");
      for (const link of links) {
        if ((await link.evaluate((one) => one.textContent)) === name) {
          await Promise.all([page.waitForNavigation(), link.evaluate((one) => one.click())]);
          return page.$eval("body", (body) => body.textContent);
        }
      }
      throw new Error(`there is no link ${name}`);
    };
    assert.match(await open("README.md"), /# Hello again/);
    await open("top");
    await open("picture.png");
    await page.waitForSelector(".preview img");
    assert.equal(await page.$eval(".preview img", (image) => image.decode().then(() => image.naturalWidth)), 1);
    await text("at/many");
    assert.equal((await page.$$("tbody tr")).length, 200);
    assert.match(await open("More"), /name 00399/);
    await text("at/");
    await page.type("input[name=find]", "00042");
    await Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]);
    assert.match(await page.$eval("body", (body) => body.textContent), /1 found among \d+ names[\s\S]*many\/name 00042/);
    assert.match(await text("changes"), /README\.md changed/);
    assert.match(await text("at/docs/gone"), /docs\/gone is provably not in this release/);
    for (const [path, said] of [["at/docs/evil.html", "<script>"], ["at/docs/evil.svg", "<svg"], [`at/${encodeURIComponent(NAME)}`, "odd"]]) {
      assert.ok((await text(path)).includes(said), path);
      assert.equal((await page.$$("script, svg, .preview img")).length, 0);
    }
    assert.deepEqual(page.wrongs, []);
    await page.close();
  });
}

test("a hostile page in a release is text, and has no origin", async () => {
  const page = await pageOf(browser);
  for (const name of ["evil.html", "evil.svg"]) {
    const response = await page.goto(`${gateway}raw/docs/${name}`);
    assert.match(response.headers()["content-type"], /^text\/plain/);
    assert.equal(response.headers()["x-content-type-options"], "nosniff");
    assert.match(response.headers()["content-security-policy"], /sandbox/);
    assert.equal(await page.evaluate(() => document.contentType), "text/plain");
  }
  assert.deepEqual(page.wrongs, []);
  await page.close();
});

test("a download is the file's bytes, under its name", async () => {
  const downloads = desk.path("downloads");
  mkdirSync(downloads);
  const page = await pageOf(browser);
  const session = await page.createCDPSession();
  await session.send("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: downloads });
  await page.goto(`${gateway}at/docs/data.bin`);
  await click(page, "a", "Download");
  for (let tries = 0; !readdirSync(downloads).includes("data.bin") && tries < 100; tries++) await new Promise((resolve) => setTimeout(resolve, 50));
  assert.ok(readFileSync(`${downloads}/data.bin`).equals(BINARY));
  await page.close();
});

test("the verifier comes with it, and checks the release itself", async () => {
  const mirror = await desk.start("serve", "release");
  const page = await pageOf(browser);
  const committed = readFileSync(new URL("../../dist/index.html", import.meta.url), "utf8");
  assert.equal(await (await fetch(`${gateway}verify/`)).text(), committed);
  await page.goto(`${gateway}verify/#id=${desk.id}&mirror=${encodeURIComponent(mirror)}`);
  await says(page, "Verified: release 2");
  assert.deepEqual(page.wrongs, []);
  await page.close();
});

test("a directory is shown as it is, says that nobody signed it, and nothing outside", async () => {
  const page = await pageOf(browser);
  await page.goto(folder);
  await says(page, "Nobody has signed what is shown here");
  assert.equal((await page.goto(`${folder}at/out/passwd`)).status(), 404);
  await says(page, "leads out of what is shown here");
  assert.equal((await page.goto(`${folder}raw/out/passwd`)).status(), 404);
  await page.goto(`${folder}at/README.md`);
  await says(page, "# Hello again");
  await page.close();
});

test("a name of another site that leads here shows nothing", async () => {
  const port = new URL(folder).port;
  const page = await pageOf(browser);
  const response = await page.goto(`http://rebound.localhost:${port}/at/README.md`);
  assert.equal(response.status(), 421);
  assert.ok(!(await page.$eval("body", (body) => body.textContent)).includes("Hello"));
  await page.close();
});

test("what was altered is red, with its name; what was revoked is not shown any more", async () => {
  desk.holdfast("pull", "release", "bad", "--id", desk.id);
  let altered = 0;
  for (const name of readdirSync(desk.path("bad/packs"))) {
    const bytes = readFileSync(desk.path(`bad/packs/${name}`));
    const at = bytes.indexOf(BINARY.subarray(200_000, 200_064));
    if (at < 0) continue;
    bytes[at] ^= 1;
    altered++;
    writeFileSync(desk.path(`bad/packs/${name}`), bytes);
  }
  assert.equal(altered, 1);
  // A cache of its own: what the other gateway has verified would do.
  const bad = await desk.start("gateway", "bad", "--id", desk.id, "--cache", "another-cache");
  const page = await pageOf(browser);
  assert.equal((await page.goto(`${bad}at/docs/data.bin`)).status(), 502);
  const text = await says(page, "not what the publisher signed");
  assert.match(text, /docs\/data\.bin/);
  assert.ok(await page.$(".banner.bad"));
  assert.equal(await page.$(".banner.good"), null);
  await page.goto(gateway);
  await says(page, "Release 2, current until");
  desk.holdfast("release", "revoke", "release", "--key", "key", "--out", "release/revoked", "--reason", "the key was stolen");
  for (let tries = 0; tries < 100 && !(await page.$(".banner.bad")); tries++) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    await page.reload();
  }
  await says(page, "the key was stolen");
  assert.equal((await page.goto(`${gateway}raw/README.md`)).status(), 503);
  await page.close();
});
