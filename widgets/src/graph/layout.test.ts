import { expect, it } from "vitest";
import { arrange, lift } from "./layout";
import type { Arc, Box } from "./model";
import type { Place } from "./routes";

const box = (id: number, parent = -1, open = false): Box => ({ id, parent, open, rest: 0 });
const arc = (from: number, to: number, bytes = 1): Arc => ({ from, to, bytes, values: 1 });
const size = () => [100, 40] as const;
const inside = (a: Place, b: Place) =>
  a.x >= b.x && a.y >= b.y && a.x + a.width <= b.x + b.width && a.y + a.height <= b.y + b.height;
const apart = (a: Place, b: Place) =>
  a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y || b.y + b.height <= a.y;

// 0 is an open frame with 1 -> 2; 2 feeds 3 outside; 4 is connected to nothing.
const BOXES = [box(0, -1, true), box(1, 0), box(2, 0), box(3), box(4)];
const ARCS = [arc(1, 2, 7), arc(2, 3, 5)];

it("lifts what crosses a frame to the members of one level", () => {
  const levels = lift(BOXES, ARCS);
  expect(levels.get(0)).toEqual([arc(1, 2, 7)]);
  expect(levels.get(-1)).toEqual([arc(0, 3, 5)]);
});

it("keeps members inside of their frame and boxes apart", () => {
  const { places } = arrange(BOXES, ARCS, size);
  const at = (id: number) => places.get(id) as Place;
  expect(inside(at(1), at(0)) && inside(at(2), at(0))).toBe(true);
  for (const [a, b] of [
    [0, 3],
    [0, 4],
    [3, 4],
    [1, 2],
  ])
    expect(apart(at(a), at(b))).toBe(true);
});

it("puts what reads below what it reads", () => {
  const { places } = arrange(BOXES, ARCS, size);
  expect((places.get(2) as Place).y).toBeGreaterThan((places.get(1) as Place).y);
  expect((places.get(3) as Place).y).toBeGreaterThan((places.get(0) as Place).y);
});

it("wraps members that are connected to nothing", () => {
  const many = Array.from({ length: 40 }, (_, i) => box(i));
  expect(arrange(many, [], size).width).toBeLessThan(900);
});

it("lays out circles", () => {
  expect(arrange([box(0), box(1)], [arc(0, 1), arc(1, 0)], size).routes).toHaveLength(2);
});
