import { expect, it } from "vitest";
import { icicleBars, skipChain, treeFrom } from "./icicle";

const tree = treeFrom([-1, 0, 1, 1, 3]);
const value = [10, 10, 2, 8, 4];
const of = (node: number) => value[node];

it("bars are as wide as their share, the widest first", () => {
  expect(icicleBars(tree, 1, of, 5, 0)).toEqual([
    { node: 1, depth: 0, x: 0, width: 1 },
    { node: 3, depth: 1, x: 0, width: 0.8 },
    { node: 4, depth: 2, x: 0, width: 0.4 },
    { node: 2, depth: 1, x: 0.8, width: 0.2 },
  ]);
});

it("what is too narrow or too deep is left out", () => {
  expect(icicleBars(tree, 1, of, 5, 0.3).map(({ node }) => node)).toEqual([1, 3, 4]);
  expect(icicleBars(tree, 1, of, 2, 0).map(({ node }) => node)).toEqual([1, 3, 2]);
});

it("nothing is drawn of a figure that is zero", () => {
  expect(icicleBars(tree, 0, () => 0, 5, 0)).toEqual([]);
});

it("a chain of single children is skipped", () => {
  expect(skipChain(tree, 0, of)).toBe(1);
});
