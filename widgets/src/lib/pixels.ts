// Thousands of cells as one pixel each, blown up by the browser.
import { ramp } from "./theme";

/** Fills a canvas with one pixel per value; unknown values stay empty. */
export function paintCells(canvas: HTMLCanvasElement, columns: number, shares: ArrayLike<number>): void {
  const rows = Math.max(1, Math.ceil(shares.length / columns));
  if (canvas.width !== columns) canvas.width = columns;
  if (canvas.height !== rows) canvas.height = rows;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const image = pen.createImageData(columns, rows);
  for (let i = 0; i < shares.length; i++) {
    if (!Number.isFinite(shares[i])) continue;
    const [r, g, b] = ramp(shares[i]);
    image.data.set([r, g, b, 255], 4 * i);
  }
  pen.putImageData(image, 0, 0);
}

/** The cell under a pointer in a grid that is drawn over the whole of `node`; -1 outside. */
export function cellAt(event: MouseEvent, node: Element, columns: number, rows: number): number {
  const box = node.getBoundingClientRect();
  const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
  const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
  return column >= 0 && column < columns && row >= 0 && row < rows ? row * columns + column : -1;
}

/** Left, top, width and height in a picture. */
export type Box = readonly [number, number, number, number];

export function boxOf(node: Element): Box {
  const at = (name: string) => Number(node.getAttribute(name));
  return [at("x"), at("y"), at("width"), at("height")];
}

/** Lays a canvas over a box of a picture that fills the same frame. */
export function placeOver(
  canvas: HTMLCanvasElement,
  [x, y, wide, high]: Box,
  [width, height]: readonly number[],
): void {
  const share = (part: number, whole: number) => `${(100 * part) / whole}%`;
  const [left, top] = [share(x, width), share(y, height)];
  Object.assign(canvas.style, { left, top, width: share(wide, width), height: share(high, height) });
}
