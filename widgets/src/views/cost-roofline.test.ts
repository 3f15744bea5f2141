import { expect, it } from "vitest";
import { roofGroups } from "../lib/roofline-picture";
import type { StageCost } from "../lib/states";
import { lineDots, spokenLine, stageDots } from "./cost-roofline";

const chip = { name: "v5e", bandwidth: 1e12, peaks: { bfloat16: 2e14, int8: 4e14, uint8: 4e14 }, source: "" };
const line = {
  place: "model.py:3",
  line: "model.py:3",
  instruction: "dot.1",
  flops: 4e9,
  bytes: 1e9,
  dtype: "bfloat16",
  most: 0,
};
const lines = {
  chip,
  assumed: false,
  dots: [{ ...line, seconds: 2e-3 }],
  seconds: 3e-6,
  communication: 0,
  without_products: [0, 0] as [number, number],
};

it("a line is a dot at its FLOPs per byte and per second", () => {
  expect(lineDots(lines)).toEqual([{ index: 0, intensity: 4, rate: 2e12, seconds: 2e-3 }]);
});

it("a line says what limits it and how far below the roof it stays", () => {
  const said = spokenLine(lines, lineDots(lines)[0]);
  expect(said).toContain("bound by memory");
  expect(said).toContain("50 % of the roof");
});

it("dtypes with the same peak share a roof", () => {
  expect(roofGroups(chip.peaks)).toEqual([
    ["bfloat16", 2e14],
    ["int8, uint8", 4e14],
  ]);
});

it("a stage with matrix products is a dot at its FLOPs per byte, below the roof", () => {
  const stage = (flops: number, compute: number | null, memory: number) =>
    ({ flops, accessed: 1e9, compute, memory }) as unknown as StageCost;
  expect(stageDots([stage(0, 0, 1e-3), stage(4e9, 2e-5, 1e-3), stage(4e9, null, 1e-3)])).toEqual([
    { index: 1, intensity: 4, rate: 4e12, seconds: 1e-3 },
  ]);
});
