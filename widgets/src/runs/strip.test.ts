import { expect, it } from "vitest";
import { Strip } from "./strip";

const RED = [255, 0, 0] as const;
const BLUE = [0, 0, 255] as const;

function drawn(width: number, add: (strip: Strip) => void): number[][] {
  const strip = new Strip(width);
  add(strip);
  const pixels = new Uint8ClampedArray(4 * width);
  strip.take(pixels, 0);
  return Array.from({ length: width }, (_, i) => [...pixels.subarray(4 * i, 4 * i + 4)]);
}

it("a bar covers its pixels, at its ends in part", () => {
  expect(drawn(4, (strip) => strip.add(0.5, 2, RED, 1))).toEqual([
    [255, 0, 0, 128],
    [255, 0, 0, 255],
    [255, 0, 0, 128],
    [0, 0, 0, 0],
  ]);
});

it("bars in one pixel mix by what they cover", () => {
  const [pixel] = drawn(1, (strip) => {
    strip.add(0, 0.75, RED, 1);
    strip.add(0.75, 0.25, BLUE, 1);
  });
  expect(pixel).toEqual([191, 0, 64, 255]);
});

it("what is beside the strip is not drawn", () => {
  const strip = new Strip(2);
  strip.add(-3, 2, RED, 1);
  strip.add(2, 5, RED, 1);
  expect(strip.take(new Uint8ClampedArray(8), 0)).toBe(false);
});

it("begins anew after it was drawn", () => {
  const strip = new Strip(1);
  const pixels = new Uint8ClampedArray(4);
  strip.add(0, 1, RED, 0.5);
  expect(strip.take(pixels, 0)).toBe(true);
  expect([...pixels]).toEqual([255, 0, 0, 128]);
  expect(strip.take(pixels, 0)).toBe(false);
});
