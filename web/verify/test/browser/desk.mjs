// A publisher's desk for tests: a tree, the real command, mirrors honest and false, and a real browser.

import { spawn, spawnSync } from "node:child_process";
import { createServer } from "node:http";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import puppeteer from "puppeteer-core";

const HOLDFAST = process.env.HOLDFAST ?? new URL("../../../../target/debug/holdfast", import.meta.url).pathname;
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
const PAGE = readFileSync(new URL("../../dist/index.html", import.meta.url));

export class Desk {
  folder = mkdtempSync(join(tmpdir(), "holdfast-web."));
  children = [];
  servers = [];

  constructor() {
    for (const [what, path] of [["the holdfast command", HOLDFAST], ["Chromium", CHROMIUM]]) {
      if (!existsSync(path)) throw new Error(`${what} is not at ${path}; scripts/test-web prepares everything`);
    }
    this.holdfast("keygen", "--out", "key");
    mkdirSync(this.path("tree"));
  }

  path(name) {
    return join(this.folder, name);
  }

  write(name, content) {
    const path = Buffer.concat([Buffer.from(this.path("tree") + "/"), Buffer.from(name)]);
    mkdirSync(dirname(String(path)), { recursive: true });
    writeFileSync(path, content);
  }

  run(args) {
    const env = { ...process.env, HOLDFAST_STATE_DIR: this.path("state"), HOLDFAST_CACHE_DIR: this.path("cache") };
    delete env.SOURCE_DATE_EPOCH;
    return { cwd: this.folder, env, args };
  }

  holdfast(...args) {
    const done = spawnSync(HOLDFAST, args, { ...this.run(args), encoding: "utf8" });
    if (done.status !== 0) throw new Error(`holdfast ${args.join(" ")}: ${done.stderr}`);
    return done.stdout;
  }

  publish(...extra) {
    return JSON.parse(this.holdfast("--json", "publish", "tree", "--to", "release", "--key", "key", ...extra));
  }

  get id() {
    return /[0-9a-f]{64}/.exec(spawnSync(HOLDFAST, ["--json", "release", "show", "release"], { ...this.run([]), encoding: "utf8" }).stdout)[0];
  }

  /** Starts `holdfast serve` or `gateway`; returns its address when it listens. */
  start(...args) {
    const child = spawn(HOLDFAST, [...args, "--listen", "127.0.0.1:0"], { ...this.run(args), stdio: ["ignore", "pipe", "inherit"] });
    this.children.push(child);
    return new Promise((resolve, reject) => {
      child.once("exit", (code) => reject(new Error(`holdfast ${args[0]} ended with ${code}`)));
      child.stdout.once("data", (line) => resolve(/http:\/\/\S+/.exec(String(line))[0]));
    });
  }

  /** A plain web server for the release's files. `change` may make others of them: it gets name and bytes. */
  static(directory = "release", change = (_, bytes) => bytes, headers = { "Access-Control-Allow-Origin": "*" }) {
    return this.listen((request, response) => {
      const name = new URL(request.url, "http://x").pathname.slice(1);
      if (name === "page.html") return response.writeHead(200, { "Content-Type": "text/html" }).end(PAGE);
      const path = this.path(join(directory, name));
      const bytes = name && existsSync(path) ? change(name, readFileSync(path)) : null;
      if (!bytes) return response.writeHead(404, headers).end();
      const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "");
      if (!range) return response.writeHead(200, headers).end(bytes);
      const [start, end] = [Number(range[1]), Math.min(Number(range[2]), bytes.length - 1)];
      const content = `bytes ${start}-${end}/${bytes.length}`;
      response.writeHead(206, { ...headers, "Content-Range": content }).end(bytes.subarray(start, end + 1));
    });
  }

  /** Where people have the page from: an origin of its own. */
  trusted() {
    return this.listen((_, response) => response.writeHead(200, { "Content-Type": "text/html; charset=utf-8" }).end(PAGE));
  }

  listen(answer) {
    const server = createServer(answer);
    this.servers.push(server);
    return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(`http://127.0.0.1:${server.address().port}/`)));
  }

  async browser() {
    const sandbox = process.getuid() === 0 ? ["--no-sandbox"] : [];
    this.chromium = await puppeteer.launch({ executablePath: CHROMIUM, args: [...sandbox, "--disable-gpu"], userDataDir: this.path("profile") });
    return this.chromium;
  }

  async close() {
    await this.chromium?.close();
    await Promise.all(this.children.map(ended));
    this.servers.forEach((server) => (server.closeAllConnections(), server.close()));
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** Ends a child, and waits until it has: until then it may still write files. */
function ended(child) {
  if (child.exitCode !== null || child.signalCode !== null) return null;
  const exited = new Promise((resolve) => child.once("exit", resolve));
  child.kill();
  return exited;
}

/** A page of the browser, and all that happens on it that should not. */
export async function pageOf(browser) {
  const page = await browser.newPage();
  page.wrongs = [];
  page.on("pageerror", (error) => page.wrongs.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => (page.wrongs.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  page.on("console", (message) => /Content Security|Trusted/i.test(message.text()) && page.wrongs.push(message.text()));
  return page;
}

export const hash = (id, mirrors, path = "") =>
  `#id=${id}${mirrors.map((one) => `&mirror=${encodeURIComponent(one)}`).join("")}${path && `&path=${path}`}`;

/** Waits until the page has this text; returns all its text. */
export async function says(page, text, within = 15_000) {
  const found = (wanted) => document.body.innerText.includes(wanted);
  await page.waitForFunction(found, { timeout: within }, text).catch(async () => {
    throw new Error(`the page does not say "${text}" but:\n${await page.evaluate(() => document.body.innerText)}`);
  });
  return page.evaluate(() => document.body.innerText);
}

/** Clicks what has this text. */
export async function click(page, selector, text) {
  const clicked = await page.evaluate(
    (selector, text) => {
      const found = [...document.querySelectorAll(selector)].find((one) => one.textContent.trim() === text);
      found?.click();
      return Boolean(found);
    },
    selector,
    text,
  );
  if (!clicked) throw new Error(`no ${selector} says "${text}"`);
}
