// What is chosen: merging, comparing, and saying it.
import type { Selection, SelectionKind, SelectionPatch } from "./view";

/** The selection after a change; `null` lets go of a kind. The same object where nothing changes. */
export function merge(selection: Selection, patch: SelectionPatch): Selection {
  const next: Record<string, unknown> = { ...selection };
  let changed = false;
  for (const [kind, value] of Object.entries(patch)) {
    const gone = value === null || value === undefined;
    if (gone ? !(kind in next) : next[kind] === value) continue;
    changed = true;
    if (gone) delete next[kind];
    else next[kind] = value;
  }
  return changed ? (next as Selection) : selection;
}

const lastPart = (path: string) => path.replaceAll("\\", "/").split("/").pop() ?? path;

/** One chosen thing in words. */
export function describeChosen(kind: SelectionKind, value: string | number): string {
  if (kind !== "line") return `${kind} ${value}`;
  const text = String(value);
  return /ipykernel_|^<ipython-input/.test(text) ? `line ${text.split(":").pop()} of a cell` : `line ${lastPart(text)}`;
}

export const entries = (selection: Selection): [SelectionKind, string | number][] =>
  Object.entries(selection) as [SelectionKind, string | number][];
