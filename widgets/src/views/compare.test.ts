import { expect, it } from "vitest";
import { type ComparedRow, changeText, groupRows, ratioOf } from "./compare";

const row = (values: ComparedRow["values"], status: ComparedRow["status"] = "changed"): ComparedRow => ({
  group: "program",
  name: "FLOPs",
  values,
  unit: "flops",
  status,
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
