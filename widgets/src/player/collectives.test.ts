import { describe, expect, it } from "vitest";
import { bytesPerLink, type Holdings, holdingsAfter, mostSent, stepsOf } from "./collectives";

const sizes = [2, 3, 4, 5, 8];
const counts = (held: Holdings) => held.map((chunks) => chunks.map((sources) => sources.size));
const finished = (kind: string, algorithm: "ring" | "tree" | "direct", n: number) => {
  const steps = stepsOf(kind, algorithm, n, 960);
  return holdingsAfter(kind, n, steps, steps.length);
};

describe.each(sizes)("over %i devices", (n) => {
  it.each(["ring", "tree"] as const)("an all-reduce by %s leaves everyone with everything", (algorithm) => {
    expect(
      counts(finished("all-reduce", algorithm, n))
        .flat()
        .every((count) => count === n),
    ).toBe(true);
  });
  it.each(["ring", "direct"] as const)("an all-gather by %s leaves everyone with every shard", (algorithm) => {
    for (const chunks of finished("all-gather", algorithm, n))
      expect(chunks.map((each) => [...each])).toEqual(chunks.map((_, i) => [i]));
  });
  it.each(["ring", "direct"] as const)("a reduce-scatter by %s leaves each with one complete chunk", (algorithm) => {
    const complete = finished("reduce-scatter", algorithm, n).map(
      (chunks) => chunks.filter((each) => each.size === n).length,
    );
    expect(complete.every((count) => count >= 1)).toBe(true);
  });
  it("an all-to-all brings every part to its place", () => {
    finished("all-to-all", "direct", n).forEach((parts, device) => {
      for (let from = 0; from < n; from++) expect(parts[from * n + device].size).toBe(1);
    });
  });
  it("a ring sends 2 (n − 1) / n of the payload per device", () => {
    expect(mostSent(stepsOf("all-reduce", "ring", n, 960))).toBeCloseTo((2 * (n - 1) * 960) / n);
    expect(stepsOf("all-reduce", "ring", n, 960)).toHaveLength(2 * (n - 1));
  });
  it("a broadcast reaches everyone", () => {
    expect(
      counts(finished("collective-broadcast", "tree", n))
        .flat()
        .every((count) => count === 1),
    ).toBe(true);
  });
});

describe("links", () => {
  it("add up the bytes of every step", () => {
    const links = bytesPerLink(stepsOf("all-reduce", "ring", 4, 400), 3);
    expect([...links.entries()]).toEqual([
      ["0>1", 300],
      ["1>2", 300],
      ["2>3", 300],
      ["3>0", 300],
    ]);
  });
  it("of one device are none", () => {
    expect(stepsOf("all-reduce", "ring", 1, 400)).toEqual([]);
  });
});

it("a permute sends the messages that the program names, in one step", () => {
  const steps = stepsOf("collective-permute", "ring", 4, 100, [
    [0, 2],
    [2, 1],
  ]);
  expect(steps.map((step) => step.map(({ from, to, bytes }) => [from, to, bytes]))).toEqual([
    [
      [0, 2, 100],
      [2, 1, 100],
    ],
  ]);
  expect(holdingsAfter("collective-permute", 4, steps, 1)[1][2]).toEqual(new Set([2]));
});
