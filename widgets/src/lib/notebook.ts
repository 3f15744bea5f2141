// What a view may do to the notebook that it stands in, where the host lets it: JupyterLab 4 does.

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
export function insertCell(model: unknown, source: string): boolean {
  const hosted = model as Hosted;
  const notebook = hosted.widget_manager?.context?.model?.sharedModel;
  if (!notebook?.insertCell || !notebook.cells) return false;
  const shows = (cell: SharedCell) =>
    (cell.toJSON().outputs ?? []).some(({ data }) => data?.[VIEW]?.model_id === hosted.model_id);
  const at = notebook.cells.findIndex(shows);
  notebook.insertCell((at < 0 ? notebook.cells.length - 1 : at) + 1, { cell_type: "code", source });
  return true;
}
