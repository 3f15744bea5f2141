import { expect, test } from "vitest";
import { extremes, sparkHeights } from "./layers";

test("the odd layer out is found, and the first of equal ones", () => {
  expect(extremes([3, 1, 7, 7])).toEqual([1, 2]);
});

test("bars begin at zero, so that equal layers look equal", () => {
  expect(sparkHeights([90, 100, 95])).toEqual([90, 100, 95]);
  expect(sparkHeights([0, 0])).toEqual([8, 8]);
});

test("of many layers the largest of neighbours is drawn", () => {
  const heights = sparkHeights(Array.from({ length: 48 }, (_, i) => (i === 31 ? 100 : 50)));
  expect(heights).toHaveLength(24);
  expect(heights.filter((each) => each === 100)).toEqual([100]);
  expect(heights[15]).toBe(100);
});
