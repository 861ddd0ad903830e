// What is shown, as the part of the address after `#` says: #id=...&mirror=...&path=... It never leaves the browser.

export interface Where {
  id: string;
  mirrors: string[];
  path: Uint8Array[];
}

export function read(hash: string): Where {
  const where: Where = { id: "", mirrors: [], path: [] };
  for (const pair of hash.replace(/^#/, "").split("&")) {
    const at = pair.indexOf("=");
    const [name, value] = at < 0 ? [pair, ""] : [pair.slice(0, at), pair.slice(at + 1)];
    if (name === "id") where.id = text(value).trim().toLowerCase();
    if (name === "mirror" && value) where.mirrors.push(text(value).trim());
    if (name === "path") where.path = value.split("/").map(bytes).filter((one) => one.length > 0);
  }
  return where;
}

export function write({ id, mirrors, path }: Where): string {
  const parts = [`id=${id}`, ...mirrors.map((mirror) => `mirror=${encodeURIComponent(mirror)}`)];
  if (path.length > 0) parts.push(`path=${path.map(escape).join("/")}`);
  return "#" + parts.join("&");
}

function text(value: string): string {
  return new TextDecoder().decode(bytes(value));
}

/** Names are bytes, and need not be UTF-8. */
function bytes(value: string): Uint8Array {
  const encoded = new TextEncoder().encode(value);
  const found: number[] = [];
  for (let i = 0; i < encoded.length; i++) {
    const digits = String.fromCharCode(...encoded.subarray(i + 1, i + 3));
    if (encoded[i] === 0x25 && /^[0-9a-fA-F]{2}$/.test(digits)) {
      found.push(parseInt(digits, 16));
      i += 2;
    } else {
      found.push(encoded[i]!);
    }
  }
  return Uint8Array.from(found);
}

function escape(name: Uint8Array): string {
  const plain = /[A-Za-z0-9._~-]/;
  return Array.from(name, (byte) => {
    const one = String.fromCharCode(byte);
    return plain.test(one) ? one : "%" + byte.toString(16).toUpperCase().padStart(2, "0");
  }).join("");
}
