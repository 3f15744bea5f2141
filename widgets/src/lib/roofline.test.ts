import { expect, it } from "vitest";
import { axesFor, dotsOf, powersOfTen, roofPoints, shareOfRoof } from "./roofline";
import { roofLabels } from "./roofline-picture";

const CHIP = { name: "c", bandwidth: 100, peaks: { bfloat16: 10_000, float32: 1_000 }, source: "" };
const FRAME = { width: 310, height: 122, left: 50, bottom: 30 };

it("keeps operations whose work is known, the longest first", () => {
  const dots = dotsOf([1, Number.NaN, 4, 2], [10, 5, 40, 0], [1, 9, 3, 2]);
  expect(dots.map(({ index }) => index)).toEqual([2, 0]);
});

it("spans whole powers of ten around dots and ridge", () => {
  const axes = axesFor([{ index: 0, intensity: 2, rate: 30, seconds: 1 }], CHIP, FRAME);
  expect(axes.low).toEqual([1, 10]); // 2 FLOPs per byte; 30 FLOP/s
  expect(axes.high).toEqual([1000, 100_000]); // the ridge at 100 FLOPs per byte; 10,000 FLOP/s, and room above
});

it("bends the roof where memory and computing are equally fast", () => {
  const axes = axesFor([{ index: 0, intensity: 1, rate: 10, seconds: 1 }], CHIP, FRAME);
  const [start, ridge, end] = roofPoints(CHIP.bandwidth, CHIP.peaks.float32, axes);
  expect(ridge[0]).toBeCloseTo(axes.x(10)); // 1,000 FLOP/s over 100 B/s
  expect(ridge[1]).toBeCloseTo(end[1]);
  expect(start[1]).toBeGreaterThan(ridge[1]); // lower on the screen
});

it("compares a dot with the roof above it", () => {
  expect(shareOfRoof({ index: 0, intensity: 2, rate: 100, seconds: 1 }, CHIP, 1000)).toBeCloseTo(0.5);
  expect(shareOfRoof({ index: 0, intensity: 50, rate: 100, seconds: 1 }, CHIP, 1000)).toBeCloseTo(0.1);
});

it("thins ticks of wide axes", () => {
  expect(powersOfTen(1, 1000)).toEqual([1, 10, 100, 1000]);
  expect(powersOfTen(1, 1e16, 8)).toHaveLength(9);
});

it("writes the names of roofs that lie close together one below the other, before the first ridge", () => {
  const ridges = [
    [200, 30],
    [190, 36],
    [180, 90],
  ] as const;
  const labels = roofLabels(ridges, 50);
  expect(labels.map(({ y }) => y)).toEqual([27, 40, 87]);
  expect(new Set(labels.map(({ x }) => x))).toEqual(new Set([172]));
  expect(roofLabels([[60, 30]], 50)[0]).toEqual({ x: 68, y: 40, anchor: "start" }); // no place before it
});
