import { expect, test } from "vitest";
import { fitColumns, leastOfNumbers } from "./fit-columns";

const WANTED = [
  { width: "110px", least: 70 },
  { width: "minmax(140px, 1fr)", least: 90 },
];

test("columns keep their widths where there is room", () => {
  expect(fitColumns(220, WANTED, 800)).toEqual({ columns: "minmax(220px, 1fr) 110px minmax(140px, 1fr)", least: 470 });
});

test("columns are narrowed to what is there, and no further than they can be", () => {
  expect(fitColumns(220, WANTED, 390).least).toBeLessThanOrEqual(390);
  expect(fitColumns(220, WANTED, 100)).toEqual({ columns: "minmax(190px, 1fr) 70px minmax(90px, 1fr)", least: 350 });
});

test("a column of numbers holds its longest number and its longest word", () => {
  expect(leastOfNumbers("FLOPs", "flops")).toBeGreaterThan(leastOfNumbers("at the peak", "bytes"));
  expect(leastOfNumbers("elementwise part", "bytes")).toBe(14 + 7 * "elementwise ↓".length);
});
