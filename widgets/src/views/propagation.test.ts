import { expect, it } from "vitest";
import type { PropagationState } from "../lib/states";
import { reasons, sentenceOf, wholeBecause } from "./propagation";

// x has the axis from the start; y got it from x in frame 1, z from y in frame 2.
const WHY: PropagationState["why"] = {
  x: [["data", [0], 0, null, "given"]],
  y: [["data", [0], 1, "x", "from x"]],
  z: [["data", [1], 2, "y", "from y"]],
};
const MADE = { why: WHY } as PropagationState;

it("follows an axis back to where it entered the program", () => {
  expect(reasons(WHY, "z", "data").map(({ value }) => value)).toEqual(["z", "y", "x"]);
  expect(reasons(WHY, "z", "model")).toEqual([]);
});
it("ends where values are each other's reason", () => {
  const circle: PropagationState["why"] = { a: [["m", [0], 1, "b", ""]], b: [["m", [0], 1, "a", ""]] };
  expect(reasons(circle, "a", "m").length).toBeLessThan(1000);
});
it("states what a frame decided", () => {
  const upper = (name: string) => name.toUpperCase();
  expect(sentenceOf(MADE, 0, upper)).toBe("Before propagation, the program specifies: data on X.");
  expect(sentenceOf(MADE, 2, upper)).toBe("data: from y");
});

it("an array that no axis reached is explained", () => {
  const leaf = { spec_text: "P()", shape: [64, 10], devices: [0, 1, 2, 3] };
  expect(wholeBecause(leaf)).toContain("Each of 4 devices stores the whole array. Its spec is P()");
  expect(wholeBecause({ ...leaf, shape: [] })).toContain("nothing to shard");
});
