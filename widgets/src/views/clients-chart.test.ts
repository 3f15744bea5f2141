import { expect, it } from "vitest";
import { cellsAcross } from "./clients-chart";

it("cells are about square, in whole rows where that is near", () => {
  expect(cellsAcross(4096, 800, 400, null)).toBe(64);
  expect(cellsAcross(7, 100, 100, null)).toBe(3);
});

it("groups are rows", () => {
  expect(cellsAcross(256, 800, 400, 32)).toBe(32);
});
