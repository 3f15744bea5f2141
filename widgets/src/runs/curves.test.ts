import { describe, expect, it } from "vitest";
import { acrossSeeds, aligned, bandOf, canBeLog, curveOf, topWithoutPeaks, union } from "./curves";

const points = [0, 2, 1, 3, 1, 1.5, 1, Number.NaN];
const spread = [0.5, 1.1, 1.5, 2, 2.5, 2.9, 1.0, 1, 1.2, 1.5, 1.7, 1.9];

describe("curves", () => {
  const curve = curveOf("loss", points, spread);
  it("come in columns, unknown numbers as gaps", () => {
    expect([curve.round, curve.seconds, curve.mean, curve.most]).toEqual([
      [0, 1],
      [0.5, 1],
      [2, 1.5],
      [3, null],
    ]);
  });
  it("have bands over clients", () => {
    expect(bandOf(curve, "all")).toEqual([
      [1, 1],
      [3, null],
    ]);
    expect(bandOf(curve, "80")?.[0].map((value) => Number(value?.toFixed(3)))).toEqual([1.1, 1]);
    expect(bandOf(curve, "none")).toBeNull();
    expect(bandOf(curveOf("accuracy", [0, 1, 1, 1], []), "all")).toBeNull();
  });
  it("are logarithmic only where everything is positive", () => {
    expect(canBeLog([[1, null, 3]])).toBe(true);
    expect(canBeLog([[1, 0]])).toBe(false);
    expect(canBeLog([[null]])).toBe(false);
  });
  it("share an axis", () => {
    const axis = union([
      [0, 2],
      [1, 2],
    ]);
    expect(axis).toEqual([0, 1, 2]);
    expect(aligned([0, 2], [5, 7], axis)).toEqual([5, null, 7]);
  });
});

describe("several seeds", () => {
  it("are a mean and a band, also where one is shorter", () => {
    expect(acrossSeeds([[0.2, 0.4], [0.4]])).toEqual({
      mean: [expect.closeTo(0.3), 0.4],
      least: [0.2, 0.4],
      most: [0.4, 0.4],
    });
  });
});

describe("a chart", () => {
  const steady = Array.from({ length: 100 }, (_, step) => 1 + (step % 5) / 10);
  it("is not flattened by a few peaks", () => {
    expect(topWithoutPeaks([steady, [...steady.slice(1), 60]])).toBeCloseTo(1.15 * 1.4);
  });
  it("shows all values where none is far above the others, or where there are few", () => {
    expect(topWithoutPeaks([steady])).toBeNull();
    expect(topWithoutPeaks([[1, 1, null, 60]])).toBeNull();
    expect(topWithoutPeaks([])).toBeNull();
  });
});
