import { expect, it } from "vitest";
import { steps } from "./allocators";
import { widths } from "./split";

it("draws parts as shares of the longest span", () => {
  expect(widths([1, 2, 1], 8)).toEqual([12.5, 25, 12.5]);
});
it("never draws more than a whole bar", () => {
  expect(widths([6, 6], 8)).toEqual([50, 50]);
});
it("keeps an amount until the next report", () => {
  expect(steps([0, 2, 3], [5, 1, 4])).toBe("M0.0 5.0H2.0V1.0H3.0V4.0");
});
