import { expect, it } from "vitest";
import { inView, MOST, mapScale, obstacles, quietCorner } from "./minimap";

const layout = (width: number, height: number) => ({ places: new Map(), routes: [], width, height });

it("a graph that fits has no map", () => {
  expect(mapScale(layout(400, 300), 1, [400, 300])).toBeNull();
  expect(mapScale(layout(4000, 3000), 0.1, [400, 300])).toBeNull();
});

it("a map is as large as it may be", () => {
  const scale = mapScale(layout(1000, 4000), 1, [1000, 800]) ?? 0;
  expect(4000 * scale).toBeCloseTo(MOST[1]);
  expect(1000 * scale).toBeLessThan(MOST[0]);
});

it("a map of a small view covers little of it", () => {
  expect(4000 * (mapScale(layout(1000, 4000), 1, [320, 200]) ?? 0)).toBeCloseTo(60);
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

it("a map avoids titles and arrows as well as boxes", () => {
  const place = (x: number, y: number) => ({ x, y, width: 200, height: 100 });
  const points: [number, number][] = [
    [50, 100],
    [50, 180],
  ];
  const route = { from: 0, to: 1, bytes: 1, values: 1, points };
  const boxes = [
    { place: place(0, 0), kind: "", open: true },
    { place: place(0, 200), kind: "", open: false },
  ];
  const windows = obstacles({ ...layout(400, 300), routes: [route] }, boxes);
  expect(windows[0].width).toBeLessThan(200);
  expect(windows[0].height).toBeLessThan(100);
  expect(windows[1]).toEqual(place(0, 200));
  expect(windows[2]).toEqual({ x: 46, y: 96, width: 8, height: 88 });
});
