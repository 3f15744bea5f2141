import { expect, it } from "vitest";
import type { ComparedRow } from "../lib/states";
import { changeText, groupRows, ratioOf, scaleOf, sizeOf, weightOf } from "./compare";
import { distinct } from "./compare-tree";

const row = (values: ComparedRow["values"], status: ComparedRow["status"] = "changed"): ComparedRow => ({
  group: "program",
  name: "FLOPs",
  values,
  unit: "flops",
  status,
  place: "",
});

it("a change is a factor where it is large, and percent where it is small", () => {
  expect(changeText(row([100, 300]))).toBe("× 3");
  expect(changeText(row([100, 25]))).toBe("× 0.25");
  expect(changeText(row([100, 112]))).toBe("+12 %");
  expect(changeText(row([1000, 985]))).toBe("−1.5 %");
});

it("what has no ratio says its status", () => {
  expect(ratioOf(row([0, 3]))).toBeNull();
  expect(changeText(row([null, 3], "added"))).toBe("added");
  expect(changeText(row([3, 3], "same"))).toBe("same");
});

it("rows are below their group", () => {
  const rows = [row([1, 2]), { ...row([1, 2]), group: "stages" }, row([3, 4])];
  expect(groupRows(rows)).toEqual({ parent: [-1, -1, 0, 0, 1], groups: ["program", "stages"], at: [-1, -1, 0, 2, 1] });
});

it("a change has a direction where less is better, and is none where it is small", () => {
  expect(weightOf(row([100, 133]))).toBe("more");
  expect(weightOf(row([100, 60]))).toBe("less");
  expect(weightOf(row([100_000, 100_010]))).toBe("small");
  expect(changeText(row([100_000, 100_010]))).toBe("less than 0.1 %");
  expect(weightOf({ ...row([4, 8]), unit: "count" })).toBe("other");
  expect(weightOf(row([3, 3], "same"))).toBe("none");
});

it("the largest change in bytes is first, not the largest factor", () => {
  const rows = [row([3, 3], "same"), row([64, 128]), row([0, 300], "added"), row([1000, 100]), row([100, 300])];
  expect([...rows].sort((a, b) => sizeOf(b, rows) - sizeOf(a, rows)).map(changeText)).toEqual([
    "× 0.1",
    "added",
    "× 3",
    "× 2",
    "same",
  ]);
});

it("figures of several units keep their order", () => {
  const rows = [row([1, 2]), { ...row([1, 9]), unit: "bytes" }];
  expect(scaleOf(rows)).toBe(0);
  expect(sizeOf(rows[0], rows)).toBeGreaterThan(sizeOf(rows[1], rows));
});

it("a change of little in its group has no colour, and an added amount is more", () => {
  expect(weightOf(row([64, 128]), 1e6)).toBe("minor");
  expect(weightOf(row([0, 300], "added"), 1000)).toBe("more");
  expect(weightOf(row([300, null], "removed"), 1000)).toBe("less");
  expect(weightOf(row([null, 3], "unknown"), 1000)).toBe("other");
});

it("programs of one name have a letter", () => {
  expect(distinct(["step", "step"])).toEqual(["A: step", "B: step"]);
  expect(distinct(["before", "after"])).toEqual(["before", "after"]);
});
