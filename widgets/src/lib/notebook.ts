// What a view may do to the notebook that it stands in. The labextension hears a DOM event; without it JupyterLab 4
// lets a widget insert cells, and other hosts let it do nothing.

/** A notebook's cell that lines came from: its number when it ran, and its text, which finds it again. */
export interface CellSource {
  number: number | null;
  source: string;
}
export type NotebookCommand =
  | { kind: "insert-cell"; source: string }
  | { kind: "jump-to-cell"; file: string; line: number; cell?: CellSource }
  | { kind: "dock"; title: string };

export const COMMAND = "workbench";

/** Asks whoever holds the page to do it; false where nobody does. */
export function askNotebook(host: EventTarget, detail: NotebookCommand): boolean {
  return !host.dispatchEvent(new CustomEvent(COMMAND, { bubbles: true, composed: true, cancelable: true, detail }));
}

/** Whether the labextension is there: only then are buttons worth showing that need it. */
export const hasLabextension = (): boolean => document.documentElement.dataset.workbenchLab !== undefined;

interface SharedCell {
  toJSON(): { outputs?: { data?: Record<string, { model_id?: string }> }[] };
}
interface SharedNotebook {
  cells: readonly SharedCell[];
  insertCell(index: number, cell: { cell_type: "code"; source: string }): unknown;
}
interface Hosted {
  model_id?: string;
  widget_manager?: { context?: { model?: { sharedModel?: Partial<SharedNotebook> } } };
}

const VIEW = "application/vnd.jupyter.widget-view+json";

/** Puts a code cell below the cell that shows the model; false where the host has no notebook to write in. */
export function insertCell(model: unknown, source: string, host?: EventTarget): boolean {
  if (host && askNotebook(host, { kind: "insert-cell", source })) return true;
  const hosted = model as Hosted;
  const notebook = hosted.widget_manager?.context?.model?.sharedModel;
  if (!notebook?.insertCell || !notebook.cells) return false;
  const shows = (cell: SharedCell) =>
    (cell.toJSON().outputs ?? []).some(({ data }) => data?.[VIEW]?.model_id === hosted.model_id);
  const at = hosted.model_id ? notebook.cells.findIndex(shows) : -1; // some hosts do not tell
  notebook.insertCell((at < 0 ? notebook.cells.length - 1 : at) + 1, { cell_type: "code", source });
  return true;
}

/** A selection's line, `file:number`, in its parts. */
export function placeOf(line: string): { file: string; line: number } | null {
  const found = /^(.*):(\d+)$/.exec(line);
  return found && { file: found[1], line: Number(found[2]) };
}
