import { expect, it } from "vitest";
import type { StageCost } from "../lib/states";
import { axesOf, costsSomething, timeParts } from "./cost-data";

const stage: StageCost = {
  stage: "0",
  kind: "server",
  name: "step",
  flops: 0,
  elementwise: 0,
  accessed: 0,
  wire: {},
  wire_least: [],
  wire_seconds: {},
  compute: 2,
  memory: 3,
  collective: 0,
  seconds: 0,
  bound: "memory",
  unknown: [],
};

it("a stage without figures costs nothing", () => {
  expect(costsSomething(stage)).toBe(false);
  expect(costsSomething({ ...stage, wire: { model: 8 } })).toBe(true);
});

it("of compute and memory the longer counts, and each axis is added", () => {
  expect(timeParts({ ...stage, wire_seconds: { model: 1 } })).toEqual([
    ["memory", 3],
    ["model", 1],
  ]);
});

it("axes are those of any stage", () => {
  expect(
    axesOf([
      { ...stage, wire: { a: 1 } },
      { ...stage, wire: { b: 1, a: 2 } },
    ]),
  ).toEqual(["a", "b"]);
});
