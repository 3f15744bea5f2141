// One box that finds operations, lines, arrays and collectives, and opens the view that shows what was found.
import { h, replace, uniqueId } from "./dom";
import { formatBytes } from "./format";
import { consume } from "./keyboard";
import { marked, wordsOf } from "./matches";
import type { SelectionPatch, ViewContext } from "./view";

export interface Entry {
  kind: "operation" | "collective" | "array" | "line";
  text: string;
  more: string;
  view: string;
  select: SelectionPatch;
  /** Larger ones first among equal matches. */
  weight: number;
}

const MOST = 6; // of each kind

/** Everything in the widget that has a name. */
export function entriesOf(context: Pick<ViewContext, "of">): Entry[] {
  const [calls, hlo, sharding] = [context.of("operations"), context.of("hlo"), context.of("sharding")];
  const found: Entry[] = [];
  if (calls) {
    const [keys, places] = [calls.state("keys"), calls.state("places")];
    const first = calls.state("columns")[0];
    const weights = first ? calls.array(`tree.${first.key}`) : [];
    calls.state("names").forEach((text, i) => {
      const select = { node: String(i), line: keys[i] || null, instruction: null };
      const weight = weights[i] || 0;
      found.push({ kind: "operation", text, more: places[i], view: "operations", select, weight });
    });
  }
  if (hlo?.state("count")) {
    for (const each of hlo.state("collectives")) {
      const select = { instruction: each.name, node: null };
      const more = `${formatBytes(each.sent)} over ${each.axes}`;
      found.push({ kind: "collective", text: each.name, more, view: "hlo", select, weight: each.sent });
    }
    const code = new Map<string, string>();
    for (const [file, , lines] of hlo.state("code"))
      for (const [number, text] of lines) code.set(`${file}:${number}`, text.trim());
    for (const [file, number, text] of hlo.state("sources")) {
      const line = `${file}:${number}`;
      const select = { line, instruction: null, node: null };
      found.push({ kind: "line", text, more: code.get(line) ?? "", view: "hlo", select, weight: 0 });
    }
  }
  const measured = context.of("measured"); // a profile's operations
  const seconds = measured?.array("seconds") ?? [];
  measured?.state("names").forEach((text, i) => {
    const select = { instruction: text, line: measured.state("lines")[i], node: null };
    const more = `${measured.state("categories")[i]} ${measured.state("places")[i]}`;
    found.push({ kind: "operation", text, more, view: "measured", select, weight: seconds[i] || 0 });
  });
  for (const leaf of sharding?.state("leaves") ?? []) {
    const more = `${leaf.type} ${leaf.spec_text}`;
    const entry = { text: leaf.path, more, view: "sharding", select: { leaf: leaf.path }, weight: 0 };
    found.push({ kind: "array", ...entry });
  }
  return found;
}

/** The entries with all words in their text or their description; a few of each kind, those that match by name first. */
export function findEntries(entries: readonly Entry[], words: readonly string[]): Entry[] {
  if (!words.length) return [];
  const has = (text: string) => words.every((word) => text.toLowerCase().includes(word));
  const named = (entry: Entry) => Number(has(entry.text));
  const hits = entries.filter(({ text, more }) => has(`${text} ${more}`));
  hits.sort((a, b) => named(b) - named(a) || b.weight - a.weight);
  const kinds = [...new Set(hits.map(({ kind }) => kind))];
  return kinds.flatMap((kind) => hits.filter((hit) => hit.kind === kind).slice(0, MOST));
}

/** The box with its list; Ctrl-K or ⌘K anywhere in `root` goes to the box. */
export function finder(context: ViewContext, root: HTMLElement): HTMLElement {
  const id = uniqueId();
  let entries: Entry[] | undefined;
  let shown: Entry[] = [];
  let at = 0;
  const list = h("div", { class: "wb-found", role: "listbox", id, "aria-label": "Results", hidden: true });
  const input = h("input", {
    type: "search",
    class: "wb-find",
    role: "combobox",
    placeholder: "Find anything (Ctrl-K)",
    "aria-label": "Find operations, lines, arrays and collectives",
    "aria-expanded": "false",
    "aria-controls": id,
    "aria-autocomplete": "list",
  });
  const close = () => {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const go = (entry: Entry) => {
    close();
    context.select(entry.select);
    context.open(entry.view);
  };
  const point = () => {
    list.querySelectorAll("[role=option]").forEach((option, i) => {
      option.setAttribute("aria-selected", String(i === at));
      if (i !== at) return;
      input.setAttribute("aria-activedescendant", option.id);
      option.scrollIntoView({ block: "nearest" });
    });
  };
  const draw = () => {
    const words = wordsOf(input.value);
    entries ??= entriesOf(context);
    shown = findEntries(entries, words);
    at = 0;
    const rows = shown.map((entry, i) =>
      h(
        "div",
        // The box keeps the focus, so that it can be typed on.
        { role: "option", id: `${id}-${i}`, onpointerdown: consume, onclick: () => go(entry) },
        h("span", { class: "wb-note" }, entry.kind),
        h("span", { class: "wb-foundname" }, marked(entry.text, words)),
        h("span", { class: "wb-note" }, marked(entry.more, words)),
      ),
    );
    replace(list, rows.length ? rows : h("p", { class: "wb-note", role: "option" }, "No match."));
    list.hidden = !words.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    point();
  };
  input.addEventListener("input", draw);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && shown.length) at = (at + step + shown.length) % shown.length;
    else if (event.key === "Enter" && shown[at] && !list.hidden) go(shown[at]);
    else if (event.key === "Escape") close();
    else return;
    consume(event);
    point();
  });
  const node = h("div", { class: "wb-finder" }, input, list);
  const onShortcut = (event: KeyboardEvent) => {
    if (event.key !== "k" || !(event.ctrlKey || event.metaKey)) return;
    input.focus();
    input.select();
    consume(event);
  };
  root.addEventListener("keydown", onShortcut, { signal: context.signal });
  return node;
}
