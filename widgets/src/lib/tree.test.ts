import { expect, it } from "vitest";
import { byNumber, byText, keepWithContext, openLargest, pathTo, treeFrom, visibleRows } from "./tree";

// 0 ─ 1 ─ 2
//   └ 3 ─ 4
// 5
const tree = treeFrom([-1, 0, 1, 0, 3, -1]);
const all = new Set([0, 1, 3]);
const nodes = (rows: { node: number }[]) => rows.map(({ node }) => node);

it("only what is open is shown", () => {
  expect(nodes(visibleRows(tree, new Set()))).toEqual([0, 5]);
  expect(nodes(visibleRows(tree, all))).toEqual([0, 1, 2, 3, 4, 5]);
});

it("a row knows its depth and its place among siblings", () => {
  const row = visibleRows(tree, all)[3];
  expect(row).toEqual({ node: 3, depth: 1, expandable: true, expanded: true, place: 2, siblings: 2 });
});

it("siblings are sorted, the tree stays a tree, unknown values are last", () => {
  const value = [1, 3, 9, 7, 2, null];
  expect(
    nodes(
      visibleRows(
        tree,
        all,
        byNumber((i) => value[i], true),
      ),
    ),
  ).toEqual([0, 3, 4, 1, 2, 5]);
  expect(
    nodes(
      visibleRows(
        tree,
        all,
        byNumber((i) => value[i], false),
      ),
    ),
  ).toEqual([0, 1, 2, 3, 4, 5]);
});

it("text sorts by the numbers in it", () => {
  const names = ["b", "layer 10", "", "layer 2", "", "a"];
  expect(
    nodes(
      visibleRows(
        tree,
        all,
        byText((i) => names[i], false),
      ),
    ),
  ).toEqual([5, 0, 3, 4, 1, 2]);
});

it("a match is shown inside what it stands in, which is opened for it", () => {
  const kept = keepWithContext(tree, (node) => node === 4);
  expect(nodes(visibleRows(tree, new Set(), undefined, kept))).toEqual([0, 3, 4]);
});

it("the inside of a match is kept but not opened", () => {
  const kept = keepWithContext(tree, (node) => node === 3);
  expect(nodes(visibleRows(tree, new Set(), undefined, kept))).toEqual([0, 3]);
  expect(nodes(visibleRows(tree, new Set([3]), undefined, kept))).toEqual([0, 3, 4]);
});

it("a filter can leave open what was open", () => {
  const kept = keepWithContext(tree, (node) => node === 4);
  expect(nodes(visibleRows(tree, new Set([0]), undefined, kept, false))).toEqual([0, 3]);
});

it("the largest are opened first, up to a number of rows", () => {
  const size = [10, 2, 2, 8, 8, 1];
  expect([...openLargest(tree, (i) => size[i], 5)]).toEqual([0, 3]);
  expect([...openLargest(tree, (i) => size[i], 3)]).toEqual([]);
});

it("a path goes from the outside in", () => {
  expect(pathTo(tree, 4)).toEqual([0, 3, 4]);
});

it("a hundred thousand nodes are filtered and flattened quickly enough to type in", () => {
  const parent = Array.from({ length: 100_000 }, (_, i) => (i === 0 ? -1 : Math.floor((i - 1) / 8)));
  const large = treeFrom(parent);
  const rows = visibleRows(
    large,
    new Set(),
    undefined,
    keepWithContext(large, (node) => node % 1000 === 7),
  );
  expect(rows.length).toBeGreaterThan(100);
});

it("long lists of siblings are sorted once, and filtered in that order", () => {
  const count = 3000;
  const tree = treeFrom(Array.from({ length: count }, () => -1));
  let compared = 0;
  const order = (a: number, b: number) => {
    compared += 1;
    return b - a;
  };
  const sorted = new Map<readonly number[], readonly number[]>();
  const kept = Uint8Array.from({ length: count }, (_, i) => (i % 1000 === 0 ? 1 : 0));
  visibleRows(tree, new Set(), order, undefined, true, sorted);
  const once = compared;
  expect(visibleRows(tree, new Set(), order, kept, true, sorted).map(({ node }) => node)).toEqual([2000, 1000, 0]);
  expect(compared).toBe(once);
});

it("a parent may stand behind its children, as one for several equal ones does", () => {
  const late = treeFrom([-1, 3, 3, 0]);
  expect(late.order).toEqual([0, 3, 1, 2]);
  expect([...keepWithContext(late, (i) => i === 1)]).toEqual([2, 1, 0, 2]);
  expect([
    ...openLargest(
      late,
      () => 1,
      9,
      (i) => i === 3,
    ),
  ]).toEqual([0]);
});
