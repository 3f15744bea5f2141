import { describe, expect, it } from "vitest";
import { findCell, findLine, likeness, relativePath } from "./cells";

const cells = [
  { source: "import jax", number: 1 },
  { source: "def f(x):\n    return x", number: 5 },
  { source: "f(1)", number: 3 },
];

describe("the cell of a line", () => {
  it("is the one with its text, whatever its number is now", () => {
    expect(findCell(cells, "In [2]", { number: 2, source: "def f(x):\n    return x\n" })).toBe(1);
  });
  it("is the one with its number, where the text is not known", () => {
    expect(findCell(cells, "In [3]")).toBe(2);
    expect(findCell(cells, "/tmp/ipykernel_7/12.py")).toBe(-1);
  });
  it("is found again after a line of it was edited", () => {
    const edited = [{ source: "def f(x):\n    y = x\n    return x", number: 7 }];
    expect(findCell(edited, "In [2]", { number: 2, source: "def f(x):\n    return x" })).toBe(0);
    expect(findCell([{ source: "other", number: 2 }], "In [2]", { number: 2, source: "def f(x):\n    return x" })).toBe(
      -1,
    );
  });
  it("of two equal cells is the one that ran under its number", () => {
    expect(
      findCell([cells[0], { source: "import jax", number: 9 }], "In [9]", { number: 9, source: "import jax" }),
    ).toBe(1);
  });
});

describe("the line in the cell", () => {
  it("is followed when lines were added above it", () => {
    expect(findLine("# new\na\nb", 2, { number: 1, source: "a\nb" })).toBe(3);
    expect(findLine("a\nb", 2, { number: 1, source: "a\nb" })).toBe(2);
    expect(findLine("a", 9)).toBe(1);
  });
  it("texts are alike by the lines that they share", () => {
    expect(likeness("a\nb", "a\nb\nc\nd")).toBe(0.5);
  });
});

it("a file is opened where the server has it", () => {
  expect(relativePath("/data/me/lab/model.py", "/data/me")).toBe("lab/model.py");
  expect(relativePath("/other/x.py", "/data/me")).toBeNull();
  expect(relativePath("model.py", "/data/me")).toBe("model.py");
});
