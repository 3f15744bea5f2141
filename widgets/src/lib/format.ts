// Numbers with units, written as `workbench.render` writes them: both are tested with `format-cases.json`.

type Amount = number | null | undefined;

const UNKNOWN = "unknown";
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const FLOPS = ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"];
const BANDWIDTHS = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"];
const SECONDS: [number, string][] = [
  [1, "s"],
  [1e-3, "ms"],
  [1e-6, "µs"],
];

const known = (value: Amount): value is number => value !== null && value !== undefined && !Number.isNaN(value);

/** `value` with that many decimals; exact halves go to the even neighbour as in Python, where `toFixed` rounds them up. */
export function fixed(value: number, digits: number): string {
  const halves = value * 2 ** (digits + 1);
  if (!Number.isInteger(halves) || halves % 2 === 0) return value.toFixed(digits);
  const scale = 10 ** digits;
  const low = Math.floor(value * scale);
  return ((low % 2 === 0 ? low : low + 1) / scale).toFixed(digits);
}

const trimmed = (text: string): string => {
  const short = text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
  return short === "-0" ? "0" : short;
};

function threeDigits(value: number): string {
  const size = Math.abs(value);
  return size >= 100 ? fixed(value, 0) : trimmed(fixed(value, size >= 10 ? 1 : 2));
}

function scaled(value: Amount, base: number, units: readonly string[]): string {
  if (!known(value)) return UNKNOWN;
  let rest = value;
  let power = 0;
  // Half a unit less, else 999.6 would be written as 1000.
  while (Math.abs(rest) >= base - 0.5 && power < units.length - 1) {
    rest /= base;
    power += 1;
  }
  return `${threeDigits(rest)} ${units[power]}`;
}

export const formatBytes = (value: Amount): string => scaled(value, 1024, BYTES);
/** Bytes per second, in the decimal units that data sheets have. */
export const formatBandwidth = (value: Amount): string => scaled(value, 1000, BANDWIDTHS);
export const formatFlops = (value: Amount): string => scaled(value, 1000, FLOPS);
/** FLOPs of matrix products with those of elementwise operations, which are counted apart. */
export function formatWork(flops: Amount, elementwise: Amount): string {
  if (!elementwise) return formatFlops(flops);
  const rest = `${formatFlops(elementwise)} elementwise`;
  return flops === 0 ? rest : `${formatFlops(flops)} and ${rest}`;
}

export function formatSeconds(value: Amount): string {
  if (!known(value) || !Number.isFinite(value)) return UNKNOWN;
  if (value === 0) return "0 s";
  for (const [scale, unit] of SECONDS)
    if (Math.abs(value) >= 0.9995 * scale) return `${threeDigits(value / scale)} ${unit}`;
  return `${threeDigits(value / 1e-9)} ns`;
}

export function formatCount(value: Amount): string {
  if (!known(value) || !Number.isFinite(value)) return UNKNOWN;
  if (Number.isInteger(value) || Math.abs(value) >= 1000)
    return Number(fixed(value, 0)).toLocaleString("en-US", { maximumFractionDigits: 0 });
  if (Math.abs(value) >= 100) return fixed(value, 0);
  const short = value.toExponential(2);
  const exponent = Number(short.slice(short.indexOf("e") + 1));
  if (exponent >= -4) return trimmed(value.toFixed(2 - exponent));
  return `${trimmed(short.slice(0, short.indexOf("e")))}e-${String(-exponent).padStart(2, "0")}`;
}

/** A formatter of numbers that are close to each other: with as many digits as tell them apart. */
export function formatWithin(values: readonly Amount[]): (value: Amount) => string {
  const all = values.filter((value): value is number => known(value) && Number.isFinite(value));
  const spread = Math.max(...all) - Math.min(...all);
  if (!(spread > 0)) return formatCount;
  const digits = Math.min(8, 2 - Math.floor(Math.log10(spread)));
  const most = Math.max(...all.map(Math.abs));
  if (digits < 1 || most / spread < 10 || most < 1e-3) return formatCount; // three digits tell them apart
  return (value) => (known(value) && Number.isFinite(value) ? value.toFixed(digits) : UNKNOWN);
}

export const formatShare = (value: Amount): string =>
  known(value) && Number.isFinite(value) ? `${(100 * value).toFixed(1)} %` : UNKNOWN;

const FORMATS: Partial<Record<string, (value: Amount) => string>> = {
  bytes: formatBytes,
  flops: formatFlops,
  seconds: formatSeconds,
  share: formatShare,
};

/** `value` in the unit that a record names; plain numbers where there is none. */
export const formatAs = (unit: string, value: Amount): string => (FORMATS[unit] ?? formatCount)(value);

/** The formatter of a metric by the unit in its name; none where the name has no unit. */
export function formatMetric(name: string): ((value: Amount) => string) | undefined {
  if (name === "flops_per_second") return (value) => (known(value) ? `${formatFlops(value)}/s` : UNKNOWN);
  if (name === "bytes_per_second") return formatBandwidth;
  const unit = /(?:^|_)(seconds|bytes|flops|share)$/.exec(name);
  return unit ? FORMATS[unit[1]] : undefined;
}

const METRIC_TITLES: Partial<Record<string, string>> = {
  flops_per_second: "FLOPs per second",
  bytes_per_second: "memory traffic per second",
  between_seconds: "time between steps",
  compile_seconds: "compilation",
  peak_flops_share: "model FLOP utilization (MFU)",
  peak_bandwidth_share: "fraction of the peak memory bandwidth",
};

/** The heading of a metric that a watched loop adds; the name itself for the user's own metrics. */
export const metricTitle = (name: string): string => METRIC_TITLES[name] ?? name;

export const plural = (count: number, noun: string): string => `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;

/** A note as a sentence: a capital letter, unless it begins with the name of something, and a full stop. */
export function asSentence(note: string): string {
  const text = /^[a-z]+[ ,]/.test(note) ? note.charAt(0).toUpperCase() + note.slice(1) : note;
  return /[.!?:]$/.test(text) ? text : `${text}.`;
}
