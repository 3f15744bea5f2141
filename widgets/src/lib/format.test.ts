import { describe, expect, it } from "vitest";
import {
  asSentence,
  fixed,
  formatAs,
  formatBandwidth,
  formatMetric,
  formatShare,
  formatWithin,
  metricTitle,
  plural,
} from "./format";
import cases from "./format-cases.json";
import metrics from "./metric-cases.json";

describe("numbers are written as Python writes them", () => {
  for (const [unit, table] of Object.entries(cases))
    it.each(table as [number | null, string][])(`${unit}: %s is %s`, (value, text) => {
      expect(formatAs(unit, value)).toBe(text);
    });
});

it("exact halves go to the even neighbour", () => {
  expect([0.5, 1.5, 2.5].map((value) => fixed(value, 0))).toEqual(["0", "2", "2"]);
});

it("a value that is no number is unknown", () => {
  expect(formatAs("bytes", Number.NaN)).toBe("unknown");
  expect(formatShare(Number.NaN)).toBe("unknown");
});

it("a noun follows its count", () => {
  expect(plural(1, "client")).toBe("1 client");
  expect(plural(2048, "client")).toBe("2,048 clients");
});

it("bandwidths have the decimal units of data sheets", () => {
  expect([819e9, 3.35e12, 512].map(formatBandwidth)).toEqual(["819 GB/s", "3.35 TB/s", "512 B/s"]);
});

it("numbers close to each other have the digits that tell them apart", () => {
  const format = formatWithin([2.322, 2.3, 2.301]);
  expect([2.322, 2.3].map(format)).toEqual(["2.3220", "2.3000"]);
  expect(formatWithin([2.3, 0.1])(2.3)).toBe("2.3");
  expect(formatWithin([null, 5])(5)).toBe("5");
});

describe("metrics have the headings and units that Python gives them", () => {
  it.each(metrics as [string, string, number, string][])("%s", (name, title, value, text) => {
    expect(metricTitle(name)).toBe(title);
    expect(formatMetric(name)?.(value)).toBe(text);
  });

  it("other names have no unit", () => expect(formatMetric("loss")).toBeUndefined());
});

it("a note is a sentence; names keep their letters", () => {
  expect(asSentence("peak bytes come from the compiler")).toBe("Peak bytes come from the compiler.");
  expect(asSentence("copy-done waits.")).toBe("copy-done waits.");
  expect(asSentence("reduce_mean adds; nothing else")).toBe("reduce_mean adds; nothing else.");
});
