import { expect, it } from "vitest";
import { icicleBars, skipChain, treeFrom } from "./icicle";

const tree = treeFrom([-1, 0, 1, 1, 3]);
const value = [10, 10, 2, 8, 4];
const of = (node: number) => value[node];

it("bars are as wide as their share, the widest first", () => {
  expect(icicleBars(tree, 1, of, 5, 0)).toMatchObject([
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

it("what equal layers have in common is one bar", () => {
  // 0 ─ 1 (layers 2 and 3, each with an attention and an mlp)
  const layered = treeFrom([-1, 0, 1, 1, 2, 2, 3, 3]);
  const size = [10, 10, 5, 5, 3, 2, 3, 2];
  const names = ["step", "2 × layers", "0", "1", "attention", "mlp", "attention", "mlp"];
  const bars = icicleBars(layered, 0, (i) => size[i], 9, 0, { layers: (i) => i === 1, name: (i) => names[i] });
  expect(bars.map(({ nodes, value, x }) => [nodes, value, x])).toEqual([
    [[0], 10, 0],
    [[1], 10, 0],
    [[4, 6], 6, 0],
    [[5, 7], 4, 0.6],
  ]);
});

it("children that add up to more than their parent stay within its width", () => {
  const size = [10, 6, 6];
  const bars = icicleBars(treeFrom([-1, 0, 0]), 0, (i) => size[i], 5, 0);
  expect(bars.map(({ x, width }) => [x, width])).toEqual([
    [0, 1],
    [0, 0.5],
    [0.5, 0.5],
  ]);
});
