import { describe, expect, it } from "vitest";
import {
  type Columns,
  emptyBars,
  inSight,
  kindAt,
  lowerBound,
  mergePixels,
  operationsBetween,
  placeOf,
  prefixesOf,
  slicesOf,
  spanAt,
  sumsBetween,
  tracksOf,
} from "./spans";

type Span = [start: number, seconds: number, device: number, kind: number, name?: number, path?: number];

function columnsOf(spans: readonly Span[]): Columns {
  return {
    start: Float64Array.from(spans, (span) => span[0]),
    seconds: Float32Array.from(spans, (span) => span[1]),
    place: Uint32Array.from(spans, (span) => placeOf(span[2], span[3])),
    name: Uint32Array.from(spans, (span) => span[4] ?? 0),
    path: Uint32Array.from(spans, (span) => span[5] ?? 0),
    awaited: new Uint32Array(spans.length),
  };
}

describe("tracks", () => {
  it("keeps every device, also one that comes late", () => {
    const columns = columnsOf([
      [0, 1, 0, 0],
      [1, 1, 0, 0],
      [5, 1, 3, 2],
    ]);
    expect(tracksOf(columns, 4).map(({ device, spans }) => [device, spans.length])).toEqual([
      [0, 2],
      [3, 1],
    ]);
  });
  it("gives what overlaps on one device a lane of its own", () => {
    const columns = columnsOf([
      [0, 4, 0, 0],
      [1, 1, 0, 1],
      [2, 1, 0, 1],
      [4, 1, 0, 0],
    ]);
    expect(tracksOf(columns, 1).map(({ lane, spans }) => [lane, [...spans]])).toEqual([
      [0, [0, 3]],
      [1, [1, 2]],
    ]);
  });
  it("knows the kind of a span again", () => {
    const [track] = tracksOf(
      columnsOf([
        [0, 1, 0, 2],
        [1, 1, 0, 1],
      ]),
      1,
    );
    expect([kindAt(track, 0), kindAt(track, 1)]).toEqual([2, 1]);
  });
});

describe("searching", () => {
  it("finds the first value that is not below", () => {
    const sorted = Float64Array.of(1, 2, 2, 5);
    expect([0, 1, 2, 3, 9].map((wanted) => lowerBound(sorted, wanted))).toEqual([0, 0, 1, 3, 4]);
  });
  it("sees what reaches into the window from outside", () => {
    const stretches = { start: Float64Array.of(0, 2, 4, 6), end: Float64Array.of(2, 4, 6, 8) };
    expect(inSight(stretches, 3, 5)).toEqual([1, 3]);
  });
  it("finds the span under the pointer, or one that is near", () => {
    const [track] = tracksOf(
      columnsOf([
        [0, 1, 0, 0],
        [3, 1, 0, 0],
      ]),
      1,
    );
    expect(spanAt(track, 3.5, 0.1)).toBe(1);
    expect(spanAt(track, 1.05, 0.1)).toBe(0);
    expect(spanAt(track, 2, 0.1)).toBe(-1);
  });
});

describe("merging below a pixel", () => {
  const busy = (count: number, seconds: number): Span[] =>
    Array.from({ length: count }, (_, i) => [i / count, seconds, 0, i % 10 === 0 ? 1 : 0]);

  it("draws a wide span as it is", () => {
    const [track] = tracksOf(columnsOf([[0.25, 0.5, 0, 1]]), 1);
    const bars = emptyBars(10);
    mergePixels(track, 0, 1, 100, bars);
    expect([bars.count, bars.x[0], bars.width[0], bars.kind[0], bars.share[0]]).toEqual([1, 25, 50, 1, 1]);
  });
  it("needs no more bars than pixels, however many spans there are", () => {
    const [track] = tracksOf(columnsOf(busy(100_000, 1e-5)), 1);
    const bars = emptyBars(1000);
    mergePixels(track, 0, 1, 200, bars);
    expect(bars.count).toBeLessThanOrEqual(200);
    const covered = Array.from({ length: bars.count }, (_, i) => bars.width[i]).reduce((a, b) => a + b, 0);
    expect(covered).toBe(200);
  });
  it("loses no span: every one is behind some bar", () => {
    const [track] = tracksOf(columnsOf(busy(5000, 1e-5)), 1);
    const bars = emptyBars(1000);
    mergePixels(track, 0, 1, 300, bars);
    expect(Array.from({ length: bars.count }, (_, i) => bars.spans[i]).reduce((a, b) => a + b, 0)).toBe(5000);
  });
  it("takes the kind that fills most of a pixel, and is as strong as the pixel is filled", () => {
    const [track] = tracksOf(
      columnsOf([
        [0, 0.001, 0, 0],
        [0.002, 0.003, 0, 2],
      ]),
      1,
    );
    const bars = emptyBars(10);
    mergePixels(track, 0, 1, 100, bars); // 10 ms a pixel, of which 4 are filled
    expect([bars.count, bars.kind[0], bars.share[0]]).toEqual([1, 2, 0.5]);
  });
  it("does not swallow a wide span that begins in the same pixel", () => {
    const [track] = tracksOf(
      columnsOf([
        [0, 0.001, 0, 0],
        [0.002, 0.5, 0, 2],
      ]),
      1,
    );
    const bars = emptyBars(10);
    mergePixels(track, 0, 1, 100, bars);
    expect([bars.count, bars.kind[0], bars.kind[1]]).toEqual([2, 0, 2]);
    expect(bars.width[1]).toBeCloseTo(50, 4);
  });
});

describe("slices of places", () => {
  const paths = [{ frames: ["train", "loss"] }, { frames: ["train", "update"] }, { frames: ["mean"] }];
  const columns = columnsOf([
    [0, 1, 0, 0, 0, 0],
    [1, 1, 0, 0, 1, 1],
    [2, 1, 0, 0, 2, 2],
    [3, 1, 0, 0, 0, 0],
    [4, 1, 0, 0, 0, 0],
  ]);
  const prefixes = prefixesOf(paths);
  const [track] = tracksOf(columns, 1);
  const read = (depth: number, calls: number[] = []) => {
    const { start, end, label } = slicesOf(columns, track, prefixes, depth, calls);
    return [...start].map((from, i) => [from, end[i], prefixes.labels[label[i]]]);
  };

  it("joins neighbours of the same place", () => {
    expect(read(0)).toEqual([
      [0, 2, "train"],
      [2, 3, "mean"],
      [3, 5, "train"],
    ]);
    expect(read(1)).toEqual([
      [0, 1, "loss"],
      [1, 2, "update"],
      [3, 5, "loss"],
    ]);
  });
  it("ends at the beginning of the next call", () => {
    expect(read(0, [0, 4])).toEqual([
      [0, 2, "train"],
      [2, 3, "mean"],
      [3, 4, "train"],
      [4, 5, "train"],
    ]);
  });
});

describe("sums over an area", () => {
  const columns = columnsOf([
    [0, 2, 0, 0, 7],
    [2, 2, 0, 2, 8],
    [4, 2, 0, 0, 7],
  ]);
  const tracks = tracksOf(columns, 1);
  it("counts what lies inside", () => {
    expect(sumsBetween(tracks[0], 1, 5)).toEqual([2, 0, 2, 0, 0]);
    expect(sumsBetween(tracks[0], 10, 11)).toEqual([0, 0, 0, 0, 0]);
    expect(sumsBetween(tracks[0], 0.5, 1)).toEqual([0.5, 0, 0, 0, 0]);
  });
  it("adds up every operation, the largest first", () => {
    expect(
      operationsBetween(columns, tracks, 0, 5).map(({ name, kind, count, seconds }) => [name, kind, count, seconds]),
    ).toEqual([
      [7, 0, 2, 3],
      [8, 2, 1, 2],
    ]);
  });
});
