import { expect, it } from "vitest";
import { pathBetween, type Spot } from "./mesh-overlay";

const spot = (x: number, y: number): Spot => ({ x, y, half: [20, 10] });
const numbers = (path: string) => (path.match(/-?[\d.]+/g) ?? []).map(Number);

it("neighbours are joined from edge to edge", () => {
  expect(numbers(pathBetween(spot(0, 0), spot(50, 0), 0, false))).toEqual([17, 0, 33, 0]);
  expect(numbers(pathBetween(spot(0, 30), spot(0, 0), 0, false))).toEqual([0, 23, 0, 7]);
});

it("what comes back runs beside what goes", () => {
  const there = numbers(pathBetween(spot(0, 0), spot(50, 0), 4, false));
  const back = numbers(pathBetween(spot(50, 0), spot(0, 0), 4, false));
  expect([there[1], back[1]]).toEqual([4, -4]);
});

it("a link around a torus leaves at its end and enters at the other", () => {
  const [x1, , x2, , x3, , x4] = numbers(pathBetween(spot(200, 0), spot(0, 0), 0, true));
  expect([x1, x2]).toEqual([217, 231]); // away from the other end
  expect([x3, x4]).toEqual([-31, -17]);
});

it("the last of a row is joined to the first of the next between the rows", () => {
  expect(pathBetween(spot(150, 0), spot(0, 36), 0, false)).toBe("M150.0,7.0 V18.0 H0.0 V29.0");
});

it("a ring over rows leaves below its last row and enters above its first", () => {
  const path = numbers(pathBetween(spot(150, 36), spot(0, 0), 0, true));
  expect(path).toEqual([150, 43, 150, 57, 0, -21, 0, -7]);
});

it("a link to another panel crosses nothing", () => {
  const [x1, y1, x2, y2, x3, y3, x4, y4] = numbers(pathBetween(spot(0, 0), spot(300, 0.5), 0, false));
  const near = (x: number, y: number, to: number) => Math.abs(x - to) < 60 && Math.abs(y) < 60;
  expect(near(x1, y1, 0) && near(x2, y2, 0) && near(x3, y3, 300) && near(x4, y4, 300)).toBe(true);
});
