// Mirrors: web servers that nobody needs to trust. What is bounded here is what they can cost; what they say is checked elsewhere.

import { Malformed, concat } from "./bytes.ts";

/** How long an answer is waited for, and each next part of it. */
const PATIENCE_MS = 10_000;
/** Least speed of an answer, after the first while. */
const BYTES_PER_S_MIN = 8 << 10;
/** What is read of a whole file to find a range in it. */
const WHOLE_BYTES_MAX = 4 << 20;
/** How long a mirror that failed is asked last. */
const PUT_BACK_MS = 30_000;

export class MirrorError extends Error {
  override name = "MirrorError";
  constructor(readonly kind: "Missing" | "Unreachable" | "Wrong", message: string) {
    super(message);
  }
}

/** That a mirror sent something false. */
export interface Drop {
  mirror: string;
  /** What was being read, if it was something in the release. */
  path: string | null;
  why: string;
}

/** The address of a mirror in the one form that is used here, or `null` if it is none. */
export function mirrorUrl(text: string, base?: string): string | null {
  try {
    const url = new URL(text.endsWith("/") ? text : `${text}/`, base);
    const web = url.protocol === "https:" || url.protocol === "http:";
    return web && !url.username && !url.password && !url.search && !url.hash ? url.href : null;
  } catch {
    return null;
  }
}

export interface Range {
  start: number;
  end: number;
}

export class Mirror {
  failedAt = -Infinity;
  dropped = false;

  constructor(readonly url: string) {}

  /** A file, or a range of one: at most `bytesMax` bytes, or as many as the range has. */
  async get(name: string, range: Range | null, bytesMax: number): Promise<Uint8Array> {
    const stop = new AbortController();
    let timer = setTimeout(() => stop.abort(), PATIENCE_MS);
    try {
      const response = await fetch(this.url + name, {
        signal: stop.signal,
        credentials: "omit",
        // What is named by its digest may come from the browser's cache: it is checked all the same.
        cache: /^(packs|index)\//.test(name) ? "default" : "no-store",
        redirect: "error",
        referrerPolicy: "no-referrer",
        headers: range ? { Range: `bytes=${range.start}-${range.end - 1}` } : {},
      });
      if ([403, 404, 410].includes(response.status)) throw new MirrorError("Missing", `${this.url}: it has no ${name}`);
      const part = response.status === 206;
      if (!(response.status === 200 || (part && range))) {
        throw new MirrorError("Unreachable", `${this.url}: it answers ${response.status} when asked for ${name}`);
      }
      const skip = range && !part ? range.start : 0;
      const wanted = range ? range.end - range.start : bytesMax;
      if (skip + wanted > Math.max(WHOLE_BYTES_MAX, bytesMax)) {
        throw new MirrorError("Wrong", `${this.url}: it does not send ranges`);
      }
      const bytes = await this.#body(response, skip + wanted, !range || part, () => {
        clearTimeout(timer);
        timer = setTimeout(() => stop.abort(), PATIENCE_MS);
      });
      if (range && bytes.length < skip + wanted) throw new MirrorError("Wrong", `${this.url}: ${name} is cut short`);
      return bytes.subarray(skip);
    } catch (error) {
      if (!(error instanceof MirrorError && error.kind === "Missing")) this.failedAt = Date.now();
      if (error instanceof MirrorError) throw error;
      const why = stop.signal.aborted
        ? "it does not answer in time"
        : "it cannot be reached, or does not allow pages of other origins to read it";
      throw new MirrorError("Unreachable", `${this.url}: ${why}`);
    } finally {
      clearTimeout(timer);
      stop.abort();
    }
  }

  /** At most `bytesMax` bytes of an answer; more than that is cut off, or refused if it should have ended there. */
  async #body(response: Response, bytesMax: number, whole: boolean, onPart: () => void): Promise<Uint8Array> {
    const parts: Uint8Array[] = [];
    let length = 0;
    const began = Date.now();
    const reader = response.body?.getReader();
    while (reader && (whole || length < bytesMax)) {
      const { done, value } = await reader.read();
      if (done) break;
      onPart();
      length += value.length;
      if (whole && length > bytesMax) throw new MirrorError("Wrong", `${this.url}: it sends more than was asked for`);
      const seconds = (Date.now() - began) / 1000 - PATIENCE_MS / 1000;
      if (seconds > 0 && length < seconds * BYTES_PER_S_MIN) throw new MirrorError("Unreachable", `${this.url}: it is too slow`);
      parts.push(value);
    }
    return concat(...parts).subarray(0, bytesMax);
  }
}

/** Several mirrors of one release. */
export class Mirrors {
  readonly drops: Drop[] = [];
  bytesReceived = 0;

  constructor(readonly all: Mirror[], readonly onDrop: (drop: Drop) => void) {}

  /** Those to ask, in order: what failed lately comes last, and what sent something false only if nothing else is left. */
  order(): Mirror[] {
    const good = this.all.filter((mirror) => !mirror.dropped);
    const late = (mirror: Mirror) => (Date.now() - mirror.failedAt < PUT_BACK_MS ? 1 : 0);
    return (good.length > 0 ? good : [...this.all]).sort((a, b) => late(a) - late(b));
  }

  /** Gets a file from the first mirror that has it as it should be. `check` throws [`Malformed`] for what is false. */
  async get<T>(
    name: string, range: Range | null, bytesMax: number, path: string | null, check: (bytes: Uint8Array, mirror: Mirror) => T,
  ): Promise<T> {
    const why: MirrorError[] = [];
    for (const mirror of this.order()) {
      try {
        const bytes = await mirror.get(name, range, bytesMax);
        this.bytesReceived += bytes.length;
        return check(bytes, mirror);
      } catch (error) {
        if (error instanceof MirrorError) {
          why.push(error);
        } else if (error instanceof Malformed) {
          this.drop(mirror, path, `${name}: ${error.message}`);
          why.push(new MirrorError("Wrong", `${mirror.url}: ${name}: ${error.message}`));
        } else {
          throw error;
        }
      }
    }
    const said = (kind: MirrorError["kind"]) => why.filter((error) => error.kind === kind).length;
    const kind = said("Missing") === why.length ? "Missing" : said("Wrong") > 0 ? "Wrong" : "Unreachable";
    throw new MirrorError(kind, why.map((error) => error.message).join("; "));
  }

  /** A mirror sent something false: it is named, and not asked while another is left. */
  drop(mirror: Mirror, path: string | null, why: string): void {
    mirror.dropped = true;
    const drop = { mirror: mirror.url, path, why };
    if (this.drops.length < 100) this.drops.push(drop);
    this.onDrop(drop);
  }
}
