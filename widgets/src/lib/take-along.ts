// Code that a view has worked out, to take into the notebook: as a new cell, or through the clipboard.
import { button, h } from "./dom";
import type { ViewContext } from "./view";

/** Copies where the host lets a page do so; else selects the text, so that the reader's own keys can. */
export function copyText(text: string, node: Node | null, copied: () => void): void {
  const select = () => node && getSelection()?.selectAllChildren(node);
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(copied, select);
  else select();
}

/** "Insert as cell" and "Copy", and what came of it. */
export function takeAlong(context: ViewContext, code: () => string, shown: Node | null = null): HTMLElement {
  const told = h("span", { class: "wb-note", role: "status" });
  const say = (text: string) => {
    told.textContent = text;
  };
  const copy = () => copyText(code(), shown, () => say("Copied"));
  const insert = () => {
    if (context.insertCell(code())) return say("Inserted below");
    copyText(code(), shown, () => say("Copied: there is no notebook here to insert into, so paste it into a cell"));
  };
  return h(
    "span",
    { class: "wb-row wb-take" },
    button("Insert as cell", insert, { "data-tip": "A new cell below this one; nothing is run." }),
    button("Copy", copy),
    told,
  );
}
