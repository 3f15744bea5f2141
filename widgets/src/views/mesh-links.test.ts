import { expect, it } from "vitest";
import { groupsOver, isRing, ringLinks, routed, torusLinks } from "./mesh-links";

const line = (count: number, wrap: boolean) => ({
  coords: Array.from({ length: count }, (_, x) => x),
  dimensions: 1,
  wraps: [wrap],
});
const short = (links: { from: number; to: number; bytes: number; wrap: boolean }[]) =>
  links.map(({ from, to, bytes, wrap }) => `${from}>${to} ${bytes}${wrap ? " wrap" : ""}`);

it("groups differ along the axes of the collective alone", () => {
  const positions = [
    [0, 0, 1, 1],
    [0, 1, 0, 1],
  ];
  expect(groupsOver(positions, [0], 4)).toEqual([
    [0, 2],
    [1, 3],
  ]);
  expect(groupsOver(positions, [0, 1], 4)).toEqual([[0, 1, 2, 3]]);
});

it("a ring is closed", () => {
  expect(short(ringLinks([4, 5, 6], 10))).toEqual(["4>5 10", "5>6 10", "6>4 10 wrap"]);
  expect(ringLinks([4], 10)).toEqual([]);
});

it("the closing link of a ring goes around a torus that wraps", () => {
  expect(short(routed(ringLinks([0, 1, 2, 3], 10), line(4, true)))).toEqual([
    "0>1 10",
    "1>2 10",
    "2>3 10",
    "3>0 10 wrap",
  ]);
});

it("without wraparound the closing link goes back over all the others", () => {
  expect(short(routed(ringLinks([0, 1, 2], 10), line(3, false)))).toEqual(["0>1 10", "1>2 10", "2>1 10", "1>0 10"]);
});

it("links that two rings use carry both", () => {
  const torus = { coords: [0, 0, 1, 0, 2, 0], dimensions: 2, wraps: [false, false] };
  const sent = [
    { from: 0, to: 2, bytes: 5, wrap: false },
    { from: 1, to: 2, bytes: 7, wrap: false },
  ];
  expect(short(routed(sent, torus))).toEqual(["0>1 5", "1>2 12"]);
});

it("a way over a place without a device stays one link", () => {
  expect(
    short(routed([{ from: 0, to: 1, bytes: 5, wrap: false }], { coords: [0, 2], dimensions: 1, wraps: [false] })),
  ).toEqual(["0>1 5"]);
});

it("a torus has a link to each neighbour once, and around where it wraps", () => {
  expect(short(torusLinks(line(4, true)))).toEqual(["0>1 0", "1>2 0", "2>3 0", "3>0 0 wrap"]);
  expect(short(torusLinks(line(4, false)))).toEqual(["0>1 0", "1>2 0", "2>3 0"]);
});

it("rings are of collectives that pass data on", () => {
  expect(["all-reduce", "all-gather-start", "all-to-all", "collective-permute"].map(isRing)).toEqual([
    true,
    true,
    false,
    false,
  ]);
});
