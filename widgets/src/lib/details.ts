// What is known about the chosen thing, as the kernel describes it in blocks.
import { type Child, h, replace } from "./dom";
import { asSentence } from "./format";
import { term } from "./glossary";
import type { CodeBlock, FactsBlock, StageDetails, TableBlock } from "./states";
import type { ViewContext } from "./view";

export type Block = StageDetails["blocks"][number];

/** What a panel shows; `extra` is added by the view. */
export interface Details extends StageDetails {
  extra?: readonly Child[];
}

const LONG = 28; // letters from which a cell takes several lines rather than leave the panel

/** Text whose lines do not end inside the name of a line: "In [1]:53". */
export const unbroken = (text: string) => text.replaceAll("In [", "In\u00a0[");

type Words = Pick<ViewContext, "glossary" | "lessons">;

export function facts(context: Words, rows: FactsBlock["rows"]): HTMLElement {
  const pairs = rows.map(([name, value]) => [h("dt", {}, term(context, name)), h("dd", {}, unbroken(value))]);
  return h("dl", { class: "wb-facts" }, pairs);
}

function tableBlock(context: Words, block: TableBlock): Child {
  const numeric = block.columns.map((_, i) =>
    block.rows.every((row) => /^[-−~]?\d[^[]*$|^unknown$|^$/.test(row[i] ?? "")),
  );
  const look = (i: number) => (i > 0 && numeric[i] ? "wb-num" : null);
  const head = block.columns.map((name, i) => h("th", { scope: "col", class: look(i) }, term(context, name)));
  const rows = block.rows.map((row) =>
    h(
      "tr",
      {},
      row.map((value, i) => h("td", { class: value.length > LONG ? "wb-wraps" : look(i) }, unbroken(value))),
    ),
  );
  const table = h("table", { "aria-label": block.title }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
  const region = { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": `${block.title}, table` };
  return [h("div", region, table), block.note ? h("p", { class: "wb-note" }, block.note) : null];
}

function codeBlock(block: CodeBlock): Child {
  const lines = block.lines.map(([number, text, marked]) =>
    h(
      "div",
      { class: marked ? "wb-line wb-marked" : "wb-line" },
      number === null ? null : h("span", { class: "wb-number" }, number),
      h("code", {}, text || " "),
    ),
  );
  const body = h("div", { class: "wb-code", tabindex: 0, role: "region", "aria-label": block.title }, lines);
  return block.folded ? h("details", {}, h("summary", {}, block.title), body) : [h("h3", {}, block.title), body];
}

export function blockOf(context: Words, block: Block): Child {
  if (block.form === "code") return codeBlock(block);
  const title = block.title ? h("h3", {}, term(context, block.title)) : null;
  if (block.form === "facts") return [title, facts(context, block.rows)];
  if (block.form === "table") return [title, tableBlock(context, block)];
  return [title, h("p", { class: "wb-note" }, unbroken(asSentence(block.text)))];
}

/** Text in which `code` stands between backticks. */
export function codeWords(text: string): Child {
  return unbroken(text)
    .split("`")
    .map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

/** Fills a detail pane; it starts at its top again when it is about something else. */
export function showDetails(context: Words, pane: HTMLElement, made: Details): void {
  const before = pane.querySelector("h2")?.textContent;
  const heading = h(
    "header",
    {},
    h("span", { class: `wb-badge wb-kind-${made.kind}`, "aria-hidden": "true" }),
    h("h2", {}, made.title),
    h("p", {}, made.subtitle ?? ""),
  );
  replace(
    pane,
    heading,
    made.blocks.map((block) => blockOf(context, block)),
    made.extra ?? [],
  );
  if (before !== made.title) pane.scrollTop = 0;
}
