import { describe, expect, it } from "vitest";
import type { ComparedResult, MetricCurve } from "../lib/states";
import { against, axisOf, edgesOf, onAxis, ranked } from "./overlay-data";

const curve = (final: number | null, more: Partial<MetricCurve> = {}): MetricCurve => ({
  metric: "loss",
  rounds: [0, 1],
  mean: [2, 1],
  low: [null, null],
  high: [null, null],
  seeds: [],
  final,
  final_low: null,
  final_high: null,
  ...more,
});
const result = (name: string, final: number | null): ComparedResult => ({
  name,
  status: "finished",
  seeds: [0],
  compared: 1,
  left_out: [],
  metrics: [curve(final)],
});

describe("several runs", () => {
  it("are ranked with those without a final value last", () => {
    const results = [result("a", 3), result("b", null), result("c", 1)];
    expect(ranked(results, "loss", true)).toEqual([2, 0, 1]);
    expect(ranked(results, "loss", false)).toEqual([0, 2, 1]);
    expect(ranked(results, "missing", true)).toEqual([0, 1, 2]);
  });
  it("have a band only where seeds say something", () => {
    expect(edgesOf(curve(1), "interval")).toBeNull();
    expect(edgesOf(curve(1, { low: [1, 0], high: [3, 2] }), "interval")).toEqual([
      [1, 0],
      [3, 2],
    ]);
    const seeds = [
      [1, null],
      [3, 2],
    ];
    expect(edgesOf(curve(1, { seeds }), "all")).toEqual([
      [1, 2],
      [3, 2],
    ]);
    expect(edgesOf(curve(1, { seeds }), "none")).toBeNull();
  });
  it("share an axis", () => {
    const axis = axisOf([curve(1), curve(1, { rounds: [1, 5] })]);
    expect(axis).toEqual([0, 1, 5]);
    expect(onAxis(curve(1, { rounds: [1, 5] }), [4, 6], axis)).toEqual([null, 4, 6]);
  });
  it("turn a test around for the second of a pair", () => {
    const pair = {
      metric: "loss",
      a: "a",
      b: "b",
      pairs: 3,
      difference: -1,
      low: -2,
      high: -0.5,
      p: 0.2,
      p_corrected: 0.4,
    };
    expect(against([pair], "a")[0]).toMatchObject({ other: "b", difference: -1, low: -2, high: -0.5, p: 0.4 });
    expect(against([pair], "b")[0]).toMatchObject({ other: "a", difference: 1, low: 0.5, high: 2 });
    expect(against([pair], "c")).toEqual([]);
  });
});
