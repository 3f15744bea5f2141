// Does to the notebook what a view asks for: a new cell, a jump to a line.
import { type CellSource, COMMAND, type NotebookCommand } from "../lib/notebook";
import { findCell, findLine, relativePath } from "./cells";
import type { App, Cell, CellEditor, NotebookPanel, NotebookTracker } from "./host";

const MARKED_MILLISECONDS = 4000;

/** Which notebook a docked view belongs to, and from which cell it came. */
const homes = new WeakMap<Node, { panel: NotebookPanel; cell: Cell | null }>();
export const setHome = (node: Node, panel: NotebookPanel, cell: Cell | null): void => {
  homes.set(node, { panel, cell });
};

interface Place {
  panel: NotebookPanel;
  /** Index of the cell that shows the view; -1 where it is not known. */
  at: number;
}

/** The notebook and the cell that an event came from. */
export function placeOf(path: readonly EventTarget[], tracker: NotebookTracker): Place | null {
  for (const node of path) {
    const home = homes.get(node as Node);
    if (home && !home.panel.isDisposed)
      return { panel: home.panel, at: home.cell ? home.panel.content.widgets.indexOf(home.cell) : -1 };
  }
  const panel = tracker.find(({ node }) => path.includes(node));
  if (!panel) return null;
  return { panel, at: panel.content.widgets.findIndex(({ node }) => path.includes(node)) };
}

/** Adds a code cell and shows it; it is not run. */
export function insertCell({ panel, at }: Place, source: string): boolean {
  const { content } = panel;
  if (!content.model) return false;
  const index = (at < 0 ? content.activeCellIndex : at) + 1;
  content.model.sharedModel.insertCell(index, { cell_type: "code", source, metadata: { trusted: true } });
  content.activeCellIndex = index;
  content.mode = "command";
  void content.scrollToItem(index, "smart");
  return true;
}

/** Draws a bar over a line of an editor that fades by itself. */
function mark(editor: CellEditor, line: number): void {
  const from = editor.getOffsetAt({ line, column: 0 });
  const place = editor.editor?.coordsAtPos(from);
  if (!place) return;
  const box = editor.host.getBoundingClientRect();
  const bar = document.createElement("div");
  bar.className = "workbench-mark";
  Object.assign(bar.style, { top: `${place.top - box.top}px`, height: `${place.bottom - place.top}px` });
  if (getComputedStyle(editor.host).position === "static") editor.host.style.position = "relative";
  editor.host.append(bar);
  setTimeout(() => bar.remove(), MARKED_MILLISECONDS);
}

async function showLine(panel: NotebookPanel, index: number, line: number, wanted?: CellSource): Promise<void> {
  const { content } = panel;
  const cell = content.widgets[index];
  cell.inputHidden = false;
  content.activeCellIndex = index;
  content.mode = "command";
  await content.scrollToItem(index, "smart");
  await cell.ready;
  const { editor } = cell;
  if (!editor) return;
  const at = findLine(cell.model.sharedModel.getSource(), line, wanted) - 1;
  editor.setCursorPosition({ line: at, column: 0 });
  editor.revealPosition({ line: at, column: 0 });
  mark(editor, at);
}

export function jumpToCell(panel: NotebookPanel, file: string, line: number, wanted?: CellSource): boolean {
  const cells = panel.content.widgets.map(({ model }) => ({
    source: model.type === "code" ? model.sharedModel.getSource() : "",
    number: model.executionCount ?? null,
  }));
  const index = findCell(cells, file, wanted);
  if (index < 0) return false;
  void showLine(panel, index, line, wanted);
  return true;
}

interface Opened {
  content?: { editor?: CellEditor };
  revealed?: Promise<void>;
  context?: { ready: Promise<void> };
}

/** Opens a file of the user's beside the notebook, at a line. */
async function openFile(app: App, path: string, line: number): Promise<void> {
  const options = { mode: "split-right" };
  const opened = (await app.commands.execute("docmanager:open", { path, factory: "Editor", options })) as Opened;
  await opened.context?.ready;
  await opened.revealed;
  const editor = opened.content?.editor;
  if (!editor) return;
  editor.setCursorPosition({ line: line - 1, column: 0 });
  editor.revealPosition({ line: line - 1, column: 0 });
  mark(editor, line - 1);
}

const isCell = (file: string) => /^In \[|ipykernel_|^<ipython-input/.test(file);

type Dock = (place: Place, title: string, path: readonly EventTarget[]) => boolean;

/** Hears what views ask for; what is done is marked so on the event. */
export function obey(app: App, tracker: NotebookTracker, serverRoot: string, dock: Dock): void {
  document.addEventListener(COMMAND, (raw) => {
    const event = raw as CustomEvent<NotebookCommand>;
    const { detail } = event;
    const path = event.composedPath();
    const place = placeOf(path, tracker);
    let done = false;
    if (detail.kind === "insert-cell") done = place !== null && insertCell(place, detail.source);
    else if (detail.kind === "dock") done = place !== null && dock(place, detail.title, path);
    else if (detail.kind === "jump-to-cell") {
      if (isCell(detail.file)) done = place !== null && jumpToCell(place.panel, detail.file, detail.line, detail.cell);
      else {
        const file = relativePath(detail.file, serverRoot);
        done = file !== null;
        if (file !== null) void openFile(app, file, detail.line).catch((error) => console.error(error));
      }
    }
    if (done) event.preventDefault();
  });
}
