import { describe, expect, it } from "vitest";
import { markStep, planeOf, sentenceOf } from "./drift-data";

describe("the plane of a drift picture", () => {
  const box = { left: 10, top: 20, width: 200, height: 100 };
  const plane = planeOf(
    [
      [0, 0],
      [4, 1],
    ],
    box,
  );
  it("has one scale for both axes", () => {
    expect(plane.x(1) - plane.x(0)).toBeCloseTo(plane.y(0) - plane.y(1));
  });
  it("holds every point in its box", () => {
    expect(plane.x(0)).toBeGreaterThan(10);
    expect(plane.x(4)).toBeLessThan(210);
    expect(plane.y(1)).toBeGreaterThan(20);
    expect(plane.y(0)).toBeLessThan(120);
  });
  it("marks round numbers", () => {
    expect([markStep(6), markStep(0.7), markStep(30)]).toEqual([1, 0.2, 5]);
    expect(plane.marksX).toContain(0);
    expect(plane.marksX.every((mark) => Math.abs(mark / plane.step - Math.round(mark / plane.step)) < 1e-9)).toBe(true);
  });
  it("draws clients that did not move", () => {
    const still = planeOf([[0, 0]], box);
    expect([still.x(0), still.y(0)]).toEqual([110, 70]);
  });
});

it("says how far clients are apart, next to how far the mean went", () => {
  const said = sentenceOf({
    round: 0,
    clients: [3, 5],
    steps: [0, 8],
    paths: [],
    mean: [],
    shares: [0.5, 0.2],
    apart: [1, 3],
    moved: 0.5,
  });
  expect(said).toBe(
    "Round 1, 2 clients: after 8 local steps, clients are on average 2.0 away from the mean of all clients, 4.0 times " +
      "the distance of that mean from the server (0.50). Distances are over all parameters.",
  );
});
