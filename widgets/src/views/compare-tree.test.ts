import { expect, it } from "vitest";
import { changeOf, changeWords, sideOf } from "./compare-tree";

it("a node without figures in one program is only in the other", () => {
  expect(sideOf([Number.NaN, Number.NaN], [1, Number.NaN])).toBe("only last");
  expect(sideOf([0, 1], [Number.NaN, Number.NaN])).toBe("only first");
  expect(sideOf([0], [3])).toBe("both");
});

it("a missing figure counts as nothing", () => {
  expect(changeOf(Number.NaN, 5)).toBe(5);
  expect(changeOf(5, Number.NaN)).toBe(-5);
});

it("a change is told with its sign, its unit and its share", () => {
  expect(changeWords(1024, 3072, "bytes")).toBe("+2 KiB (+200 %)");
  expect(changeWords(4096, 1024, "bytes")).toBe("−3 KiB (−75 %)");
  expect(changeWords(0, 1024, "bytes")).toBe("+1 KiB");
  expect(changeWords(7, 7, "count")).toBe("same");
});
