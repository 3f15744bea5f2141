// One row of pixels that many narrow bars are added to: drawn at once, where each bar by itself would cost a call.
import type { Rgb } from "../lib/theme";

const LEAST = 1e-4;

/** Sums of colour per pixel; what covers a pixel in part counts in part. */
export class Strip {
  private readonly sums: Float32Array; // red, green, blue and cover, each times cover
  private used = false;

  constructor(readonly width: number) {
    this.sums = new Float32Array(4 * width);
  }

  /** A bar from `x`, `wide` pixels wide, as opaque as `alpha` says. */
  add(x: number, wide: number, [r, g, b]: Rgb, alpha: number): void {
    const left = Math.max(0, x);
    const right = Math.min(this.width, x + wide);
    const { sums } = this;
    for (let pixel = Math.floor(left); pixel < right; pixel++) {
      const cover = (Math.min(right, pixel + 1) - Math.max(left, pixel)) * alpha;
      const at = 4 * pixel;
      sums[at] += r * cover;
      sums[at + 1] += g * cover;
      sums[at + 2] += b * cover;
      sums[at + 3] += cover;
    }
    this.used ||= right > left;
  }

  /** Writes the pixels as RGBA from `offset` on and begins anew; false where there is nothing to draw. */
  take(pixels: Uint8ClampedArray, offset: number): boolean {
    const { sums, used } = this;
    if (!used) return false;
    for (let at = 0; at < sums.length; at += 4) {
      const cover = sums[at + 3];
      for (let channel = 0; channel < 3; channel++)
        pixels[offset + at + channel] = cover > LEAST ? sums[at + channel] / cover : 0;
      pixels[offset + at + 3] = 255 * Math.min(1, cover);
    }
    sums.fill(0);
    this.used = false;
    return true;
  }
}
