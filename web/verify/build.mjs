// Builds dist/verify.js (the library) and dist/index.html (the page: one file, nothing loaded from elsewhere). With --check it
// compares what it builds with what is committed instead.

import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = new URL(".", import.meta.url);
const common = {
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  write: false,
  absWorkingDir: fileURLToPath(here),
};

async function bundled(entry, options) {
  const result = await build({ ...common, ...options, entryPoints: [entry] });
  return result.outputFiles[0].text;
}

const licences = async () => {
  const names = ["@noble/hashes", "@noble/curves", "fzstd"];
  const text = (name) => readFile(new URL(`node_modules/${name}/LICENSE`, here), "utf8");
  const texts = await Promise.all(names.map(async (name) => `${name}\n\n${await text(name)}`));
  return texts.join("\n----\n\n").trimEnd() + "\n";
};

const sha256 = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

async function page() {
  const script = (await bundled("page/app.ts", { minify: true, format: "iife" })).trim();
  // Either would end the element it stands in.
  if (/<\/script|<!--/i.test(script)) throw new Error("the script has what ends a script element");
  const style = (await readFile(new URL("page/style.css", here), "utf8")).trim();
  // Nothing but this very script and this very style; mirrors may be anywhere; what is in a release never becomes a page.
  const policy = [
    "default-src 'none'",
    `script-src ${sha256(script)}`,
    `style-src ${sha256(style)}`,
    "img-src blob:",
    "connect-src http: https:",
    "base-uri 'none'",
    "form-action 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ].join("; ");
  const template = await readFile(new URL("page/index.html", here), "utf8");
  // As functions, since `$` means something in replacements.
  return template
    .replace("%POLICY%", () => policy)
    .replace("%STYLE%", () => style)
    .replace("%SCRIPT%", () => script);
}

const files = {
  "dist/verify.js": await bundled("src/verify.ts", {}),
  "dist/index.html": await page(),
  "dist/LICENSES.txt": await licences(),
};
const check = process.argv.includes("--check");
for (const [name, text] of Object.entries(files)) {
  const path = new URL(name, here);
  if (check) {
    const committed = await readFile(path, "utf8").catch(() => "");
    if (committed !== text) {
      console.error(`web/verify/${name} is not what its sources make; run \`npm run build\` and commit it`);
      process.exit(1);
    }
  } else {
    await mkdir(new URL("dist/", here), { recursive: true });
    await writeFile(path, text);
  }
}
