import { expect, it } from "vitest";
import { areasOf, shortName } from "./treemap";

const buffers = [
  { name: "a", bytes: 60, group: "arguments" },
  { name: "b", bytes: 20, group: "arguments" },
  { name: "c", bytes: 20, group: "temporaries" },
  { name: "crumb", bytes: 0.01, group: "temporaries" },
];

it("every buffer has an area in the frame of its group, the largest group first", () => {
  const areas = areasOf(buffers, 400, 200);
  expect(areas.filter(({ index }) => index < 0).map(({ title, bytes }) => [title, bytes])).toEqual([
    ["arguments", 80],
    ["temporaries", 20.01],
  ]);
  const [a, b] = [0, 1].map((index) => areas.find((area) => area.index === index));
  expect((a?.width ?? 0) * (a?.height ?? 0)).toBeGreaterThan(2 * (b?.width ?? 0) * (b?.height ?? 0));
});

it("areas stay inside of the picture, and crumbs are left out", () => {
  const areas = areasOf(buffers, 400, 200);
  expect(areas.some(({ index }) => index === 3)).toBe(false);
  for (const { x, y, width, height } of areas) {
    expect(x).toBeGreaterThanOrEqual(0);
    expect(y).toBeGreaterThanOrEqual(0);
    expect(x + width).toBeLessThanOrEqual(400.01);
    expect(y + height).toBeLessThanOrEqual(200.01);
  }
});

it("a tile has the end of an array's path", () => {
  expect(shortName("model.blocks[0].attn.value.kernel")).toBe("value.kernel");
  expect(shortName("optimizer.mu['blocks'][0]['up']['kernel']")).toBe("up.kernel");
  expect(shortName("params[2]['up']")).toBe("params.2.up");
  expect(shortName("batch['image']")).toBe("batch['image']");
  expect(shortName("copy_bitcast_fusion.54")).toBe("copy_bitcast_fusion.54");
  expect(shortName("not listed")).toBe("not listed");
});
