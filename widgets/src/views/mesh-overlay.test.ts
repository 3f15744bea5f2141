import { expect, it } from "vitest";
import { pathBetween, type Spot } from "./mesh-overlay";

const spot = (x: number, y: number): Spot => ({ x, y, half: [20, 10] });
const numbers = (path: string) => (path.match(/-?[\d.]+/g) ?? []).map(Number);

it("neighbours are joined from edge to edge", () => {
  expect(pathBetween(spot(0, 0), spot(50, 0), 0, false)).toBe("M15.0,0.0 L35.0,0.0");
});

it("what comes back runs beside what goes", () => {
  const there = numbers(pathBetween(spot(0, 0), spot(50, 0), 4, false));
  const back = numbers(pathBetween(spot(50, 0), spot(0, 0), 4, false));
  expect(there[1]).toBe(4);
  expect(back[1]).toBe(-4);
});

it("a link around others is bent out of their row or column", () => {
  const row = numbers(pathBetween(spot(0, 0), spot(200, 0), 0, true));
  const column = numbers(pathBetween(spot(0, 0), spot(0, 200), 0, true));
  expect(Math.max(row[3], row[5])).toBeGreaterThan(10);
  expect(Math.max(column[2], column[4])).toBeGreaterThan(20);
});
