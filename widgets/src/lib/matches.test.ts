import { expect, it } from "vitest";
import { expressionOf, marked, piecesOf, splitAtEnd, wordsOf } from "./matches";

it("words are lower case, without the spaces around them", () => {
  expect(wordsOf("  Dot  add ")).toEqual(["dot", "add"]);
  expect(wordsOf("  ")).toEqual([]);
});

it("every occurrence is a piece, in the case of the text", () => {
  expect(piecesOf("Add.dot add", ["add"])).toEqual([
    ["Add", true],
    [".dot ", false],
    ["add", true],
  ]);
});

it("a text without a match is one piece", () => {
  expect(piecesOf("dot", ["add"])).toEqual([["dot", false]]);
  expect(piecesOf("", ["add"])).toEqual([["", false]]);
});

it("the longer of two words wins, signs of expressions are letters like others", () => {
  expect(piecesOf("x.reduce-scatter(1)", ["reduce", "reduce-scatter", "(1"])).toEqual([
    ["x.", false],
    ["reduce-scatter", true],
    ["(1", true],
    [")", false],
  ]);
  expect(expressionOf([])).toBeNull();
});

it("marks are elements, the text stays text", () => {
  const node = document.createElement("p");
  node.append(...(marked("<b>dot</b>", ["dot"]) as (Node | string)[]));
  expect(node.innerHTML).toBe('&lt;b&gt;<mark class="wb-match">dot</mark>&lt;/b&gt;');
  expect(marked("dot", [])).toBe("dot");
});

it("of a place the line stays whole, with what follows it, and of a dotted name its last part", () => {
  expect(splitAtEnd("train_step.py:27")).toEqual(["train_step.py", ":27"]);
  expect(splitAtEnd("In [2]:27 (backward)")).toBeNull();
  expect(splitAtEnd("train_step.py:27 `grads, losses = scan(step, zeros)`")).toBeNull();
  expect(splitAtEnd("train_step.py:27 (backward)")).toEqual(["train_step.py", ":27 (backward)"]);
  expect(splitAtEnd("f32[8]{0:T(128)}")).toBeNull();
  expect(splitAtEnd("Transformer.train.<lambda>")).toEqual(["Transformer.train", ".<lambda>"]);
  expect(splitAtEnd("jit(f)/wb:1.2:clients/dot")).toBeNull();
});
