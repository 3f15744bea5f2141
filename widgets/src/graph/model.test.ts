import { describe, expect, it } from "vitest";
import { around, closeOldest, Graph, mergeChains, type Nesting, pageOf, ROOT } from "./model";

// Groups: 0 "layer" (holds 1 and instruction 0), 1 "fusion" of instruction 2 (holds instruction 3), 2 "tail" (holds 4).
// Instructions: 0 dot, 1 tuple (in the layer), 2 the fusion, 3 inside of it, 4 add. Data: 0 -> 1 -> 2 -> 4, 3 in 2.
const NESTING: Nesting = { parent: [ROOT, 0, ROOT, 0, 0, -2, 1, 2], fusions: [-1, 2, -1] };
const FLOW = {
  edges: [0, 1, 1, 2, 2, 4],
  sizes: [100, 0, 40, 0, 8],
  weights: [5, 0, 3, 0, 1],
  trivial: (i: number) => i === 1,
};
const graph = new Graph(NESTING, FLOW);
const shown = (open: number[], all = false) => graph.frontier(new Set(open), { all, page: 40 });

describe("what shows", () => {
  it("closed groups, with the bytes of everything that flows between them", () => {
    expect(shown([]).boxes.map(({ id }) => id)).toEqual([0, 2]);
    expect(shown([]).arcs).toEqual([{ from: 0, to: 2, bytes: 40, values: 1 }]);
  });
  it("the members of an open group, joined through the tuple", () => {
    expect(shown([0]).boxes.map(({ id }) => id)).toEqual([0, 3, 1, 2]);
    expect(shown([0]).arcs).toContainEqual({ from: 3, to: 1, bytes: 100, values: 1 });
  });
  it("the tuple as well where it is asked for", () => {
    expect(shown([0], true).arcs.map(({ from, to }) => [from, to])).toContainEqual([3, 4]);
  });
  it("a fusion as a group that counts once", () => {
    expect(graph.instructionOf(1)).toBe(2);
    expect(graph.nodeOf(2)).toBe(1);
    expect(graph.shareOf(1)).toBeCloseTo(3 / 9);
  });
});

describe("folding", () => {
  it("opens the heaviest groups first and stops at the limit", () => {
    expect([...graph.firstLook(10)]).toEqual([0, 2]);
    expect([...graph.firstLook(2)]).toEqual([2]); // opening the tail adds no box
  });
  it("shows a page of a large group and a box for the rest", () => {
    const parent = [ROOT, ...Array.from({ length: 100 }, () => 0)];
    const weights = Array.from({ length: 100 }, (_, i) => i);
    const large = new Graph({ parent, fusions: [-1] }, { edges: [], sizes: weights, weights, trivial: () => false });
    const { boxes } = large.frontier(new Set([0]), { all: false, page: 40 });
    expect(boxes).toHaveLength(42); // the frame, forty instructions, the rest
    expect(boxes[1].id).toBe(100); // instruction 99, the heaviest
    expect(boxes.at(-1)?.rest).toBe(60);
  });
  it("turns pages in a circle", () => {
    expect(pageOf([1, 2, 3], 2, 1)).toEqual({ shown: [3], rest: [1, 2] });
    expect(pageOf([1, 2, 3], 2, 2).shown).toEqual([1, 2]);
  });
  it("closes what was opened longest ago, but not what is kept", () => {
    expect([...closeOldest([1, 2, 3, 4], new Set([1]), (open) => open.size, 2)]).toEqual([1, 4]);
  });
  it("joins groups that hold only one group", () => {
    // 0 holds 1 alone, 1 holds two instructions.
    const { nesting, chains } = mergeChains({ parent: [ROOT, 0, 1, 1], fusions: [-1, -1] }, () => false);
    expect(chains[1]).toEqual([0]);
    expect(Array.from(nesting.parent)).toEqual([-2, ROOT, 1, 1]);
  });
});

it("finds what is a few steps away in both directions", () => {
  const arcs = [1, 2, 3, 4].map((i) => ({ from: i, to: i + 1, bytes: 0, values: 1 }));
  expect([...around(arcs, 3, 1)].sort()).toEqual([2, 3, 4]);
});
