import { expect, it } from "vitest";
import { findingsAt } from "../lib/badges";
import type { AdviceReport, Finding } from "../lib/states";
import { places, priceOf } from "./advice";

const finding = (number: number, nodes: number[], leaves: string[] = []) =>
  ({ number, nodes, leaves, instructions: [], axes: [], lines: [] }) as unknown as Finding;
const report = { findings: [finding(0, [3]), finding(1, [3, 5], ["w", "b"])] } as unknown as AdviceReport;

it("finds what is said of a row in the order of rank", () => {
  expect(findingsAt(report, "nodes", 3).map(({ number }) => number)).toEqual([0, 1]);
  expect(findingsAt(report, "leaves", "w").map(({ number }) => number)).toEqual([1]);
  expect(findingsAt(report, "nodes", 4)).toEqual([]);
  expect(findingsAt(undefined, "nodes", 3)).toEqual([]);
});

it("names the first place and counts the others", () => {
  expect(places(report.findings[1])).toBe("w +1");
  expect(
    places({ lines: [{ line: "a.py:3", source: "a.py:3", function: "f" }], leaves: ["w"], instructions: [] }),
  ).toBe("a.py:3");
  expect(places(report.findings[0])).toBe("");
});

it("a change names what it makes worse", () => {
  const gain = (quantity: string, saved_share: number) =>
    ({ quantity, saved_share, before: "", after: "", verified: true, how: "", text: "" }) as const;
  const compared = [gain("bytes sent", 0.23), gain("peak memory", -0.79), gain("FLOPs", -0.51), gain("seconds", -0.01)];
  expect(priceOf(compared[0], compared)).toBe("peak memory +79 %, FLOPs +51 %");
});
