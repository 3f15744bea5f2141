import { expect, it } from "vitest";
import { inView, MOST, mapScale, quietCorner } from "./minimap";

const layout = (width: number, height: number) => ({ places: new Map(), routes: [], width, height });

it("a graph that fits has no map", () => {
  expect(mapScale(layout(400, 300), 1, [400, 300])).toBeNull();
  expect(mapScale(layout(4000, 3000), 0.1, [400, 300])).toBeNull();
});

it("a map is as large as it may be", () => {
  const scale = mapScale(layout(1000, 4000), 1, [400, 300]) ?? 0;
  expect(4000 * scale).toBeCloseTo(MOST[1]);
  expect(1000 * scale).toBeLessThan(MOST[0]);
});

it("what is in view is given in the layout's own pixels", () => {
  expect(inView(layout(1000, 1000), 2, [-200, -400], [400, 300])).toEqual({ x: 100, y: 200, width: 200, height: 150 });
});

it("what is in view ends where the graph does", () => {
  expect(inView(layout(100, 100), 1, [50, 0], [400, 300])).toEqual({ x: 0, y: 0, width: 100, height: 100 });
});

it("a map lies where it covers no box, and stays where it is while nothing is better", () => {
  const box = { x: 300, y: 200, width: 90, height: 90 };
  expect(quietCorner([box], [100, 80], [400, 300], "right bottom")).toBe("left bottom");
  expect(quietCorner([box], [100, 80], [400, 300], "left top")).toBe("left top");
});
