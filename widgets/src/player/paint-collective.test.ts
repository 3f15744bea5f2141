import { expect, test } from "vitest";
import { layout } from "./paint-collective";

const CARD_HEIGHT = 60;

test.each([
  [8, 705, 240],
  [16, 705, 240],
  [8, 760, 470],
  [3, 705, 240],
  [8, 370, 160],
])("cards of %i devices on a stage of %i by %i do not overlap", (count, width, height) => {
  const { places, cardWidth } = layout(count, { width, height });
  const hidden = places.flatMap(([x, y], i) =>
    places.slice(i + 1).filter(([ox, oy]) => Math.abs(ox - x) < cardWidth && Math.abs(oy - y) < CARD_HEIGHT),
  );
  expect(hidden).toEqual([]);
});

test("devices in two rows go around clockwise", () => {
  const { places } = layout(8, { width: 705, height: 240 });
  expect(places[0][1]).toBeLessThan(places[7][1]);
  expect(places[0][0]).toBeCloseTo(places[7][0]);
  expect(places[3][0]).toBeCloseTo(places[4][0]);
});
