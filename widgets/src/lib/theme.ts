// Colours come from CSS variables, which follow the notebook's theme; a canvas has to ask for them.
import { h } from "./dom";

export type Rgb = readonly [number, number, number];

const CIVIDIS: readonly Rgb[] = [
  [0, 34, 78],
  [18, 53, 112],
  [59, 73, 108],
  [87, 93, 109],
  [112, 113, 115],
  [138, 134, 120],
  [165, 156, 116],
  [195, 179, 105],
  [225, 204, 85],
  [254, 232, 56],
];

/** A value between 0 and 1 as a colour: even in lightness, fit for colour-blind eyes. */
export function ramp(share: number): Rgb {
  const place = Math.min(Math.max(share || 0, 0), 1) * (CIVIDIS.length - 1);
  const low = Math.min(Math.floor(place), CIVIDIS.length - 2);
  const [a, b] = [CIVIDIS[low], CIVIDIS[low + 1]];
  const mixed = a.map((value, i) => Math.round(value + (b[i] - value) * (place - low)));
  return [mixed[0], mixed[1], mixed[2]];
}

export const css = (rgb: Rgb): string => `rgb(${rgb.join(",")})`;

/** The present value of a token such as `clients`, for a canvas. */
export function token(node: Element, name: string): string {
  return getComputedStyle(node).getPropertyValue(`--wb-${name}`).trim() || "#888888";
}

export const SERIES = 8;
export const seriesColour = (node: Element, index: number): string => token(node, `series-${index % SERIES}`);

/** A legend of `ramp` with its ends in words. */
export function legend(title: string, low: string, high: string): HTMLElement {
  const stops = CIVIDIS.map((rgb, i) => `${css(rgb)} ${(100 * i) / (CIVIDIS.length - 1)}%`).join(",");
  const bar = h("span", { class: "wb-ramp", "aria-hidden": "true" });
  bar.style.background = `linear-gradient(90deg,${stops})`;
  return h("div", { class: "wb-legend" }, h("span", {}, title), h("span", {}, low), bar, h("span", {}, high));
}

const WATCHED = ["data-jp-theme-name", "data-jp-theme-light", "data-wb-theme", "class", "theme"];

/** Calls back after the page has changed between light and dark. */
export function watchTheme(callback: () => void, signal: AbortSignal): void {
  const later = () => requestAnimationFrame(callback);
  const watch = new MutationObserver(later);
  for (const node of [document.body, document.documentElement])
    watch.observe(node, { attributes: true, attributeFilter: WATCHED });
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", later, { signal });
  signal.addEventListener("abort", () => watch.disconnect());
}

export const wantsStill = (): boolean => matchMedia("(prefers-reduced-motion: reduce)").matches;
