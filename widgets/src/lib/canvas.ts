// A canvas as wide as its place, sharp on every screen, drawn again when place or theme change.
import type { ViewContext } from "./view";

export type Draw = (pen: CanvasRenderingContext2D, width: number, height: number) => void;

/** Draws now and whenever it has to; returns what asks for a new drawing. */
export function liveCanvas(
  context: Pick<ViewContext, "signal" | "theme">,
  canvas: HTMLCanvasElement,
  draw: Draw,
): () => void {
  let frame = 0;
  const paint = () => {
    frame = 0;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const pen = canvas.getContext("2d");
    if (!width || !height || !pen) return;
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    draw(pen, width, height);
  };
  const later = () => {
    if (!frame) frame = requestAnimationFrame(paint);
  };
  const watch = new ResizeObserver(later);
  watch.observe(canvas);
  context.theme.onChange(later);
  context.signal.addEventListener("abort", () => {
    watch.disconnect();
    cancelAnimationFrame(frame);
  });
  return later;
}
