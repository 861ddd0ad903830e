// Everything that is built with, or into, the verifier is permissively licensed.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

test("licences", () => {
  const { packages } = JSON.parse(readFileSync(new URL("../package-lock.json", import.meta.url), "utf8"));
  const allowed = ["MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "ISC", "Zlib", "MIT OR Apache-2.0"];
  for (const [name, { license }] of Object.entries(packages)) assert.ok(allowed.includes(license), `${name}: ${license}`);
});
