// Times in words, as the command says them.

/** The last second of the year 9999. */
export const LATEST_S = 253_402_300_799n;

/** As in `2026-03-01 12:30:05 UTC`. */
export function moment(seconds: bigint): string {
  if (seconds > LATEST_S || seconds < 0n) return "a time outside of the years 1970 to 9999";
  return new Date(Number(seconds) * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC";
}

/** A span in its largest unit, as in `3 days`. */
export function span(seconds: bigint): string {
  const [count, unit] =
    seconds < 120n ? [seconds, "second"]
    : seconds < 7200n ? [seconds / 60n, "minute"]
    : seconds < 172_800n ? [seconds / 3600n, "hour"]
    : [seconds / 86_400n, "day"];
  return `${count} ${unit}${count === 1n ? "" : "s"}`;
}
