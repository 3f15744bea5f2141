// A played round as a GIF, made in the browser.
import { applyPalette, GIFEncoder, quantize } from "gifenc";

const COLOURS = 64;
const REST = 6; // frames that the last picture stays

/**
 * Encodes moments of a picture.
 * @param draw Paints a moment onto the pen's canvas.
 * @param perFrame Pictures of one frame of the player; 1 for readers who want no motion.
 */
export async function encodeGif(
  pen: CanvasRenderingContext2D,
  draw: (moment: number) => void,
  count: number,
  perFrame: number,
  seconds: number,
  onShare: (share: number) => void,
): Promise<Uint8Array<ArrayBuffer>> {
  const { width, height } = pen.canvas;
  const encoder = GIFEncoder();
  const pictures = count * perFrame;
  const delay = (1000 * seconds) / perFrame;
  for (let i = 0; i <= pictures; i++) {
    draw(Math.min(i / perFrame, count - 1e-6));
    const pixels = pen.getImageData(0, 0, width, height).data;
    const palette = quantize(pixels, COLOURS);
    encoder.writeFrame(applyPalette(pixels, palette), width, height, {
      palette,
      delay: i === pictures ? delay * REST : delay,
    });
    onShare(i / pictures);
    if (i % 4 === 0) await new Promise((done) => setTimeout(done)); // the page stays alive
  }
  encoder.finish();
  return encoder.bytes();
}
