import { expect, test } from "vitest";
import { fitColumns, keptColumns, leastOfNumbers } from "./fit-columns";

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

test("columns are hidden from the last on, lesser ones first, and never the one that is needed", () => {
  const each = { width: "100px", least: 100 };
  const wanted = [each, { ...each, lesser: true }, each, { ...each, needed: true }];
  expect(keptColumns(300, wanted, 700)).toEqual([0, 1, 2, 3]);
  expect(keptColumns(300, wanted, 699)).toEqual([0, 2, 3]); // names would have less than they want
  expect(keptColumns(300, wanted, 519)).toEqual([0, 3]); // less than can be read
  expect(keptColumns(300, wanted, 50)).toEqual([3]);
  expect(keptColumns(300, wanted, 0)).toEqual([0, 1, 2, 3]); // not laid out yet
});
