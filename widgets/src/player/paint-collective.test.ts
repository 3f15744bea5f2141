import { expect, test } from "vitest";
import { labelPlace, layout } from "./paint-collective";

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

test.each([
  ["as wanted where no card is", { x: 200, y: 50 }, 30, { x: 200, y: 50 }],
  ["between the cards where one covers the wanted place", { x: 60, y: 50 }, 30, { x: 216, y: 50 }],
  ["nowhere if it is wider than the gap", { x: 60, y: 50 }, 150, null],
])("the label of a link stands %s", (_where, wanted, half, expected) => {
  const places: [number, number][] = [
    [100, 50],
    [300, 50],
  ];
  const found = labelPlace(half, { places, cardWidth: 90, width: 400 }, [places[0], places[1]], wanted);
  expect(found).toEqual(expected);
});
