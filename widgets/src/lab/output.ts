// Shows a view in its cell's output or beside the notebook: the live widget where the kernel has it, else what was saved.
import type { App, Cell, Layout, MimeModel, Modules, NotebookPanel, Renderer, RenderMime, Widget } from "./host";
import { setHome } from "./places";
import { drawSaved, SAVED, type Saved } from "./saved";

const WIDGET_VIEW = "application/vnd.jupyter.widget-view+json";
const PATIENCE_MILLISECONDS = 1500;
const NO_MANAGER =
  "This JupyterLab lacks ipywidgets or anywidget, so the view cannot reach its kernel and shows its saved state. " +
  "Install both into the environment that JupyterLab itself runs in (pip install ipywidgets anywidget), and restart it.";

const mimeModel = (data: Record<string, unknown>): MimeModel => ({ data, metadata: {}, trusted: true, setData() {} });

/** Whether a widget has appeared in the node, as soon as that is known. */
function appears(node: HTMLElement): Promise<boolean> {
  const shown = () => node.firstElementChild !== null;
  if (shown()) return Promise.resolve(true);
  return new Promise((done) => {
    const end = (answer: boolean) => {
      observer.disconnect();
      clearTimeout(late);
      done(answer);
    };
    const observer = new MutationObserver(() => {
      if (shown()) end(true);
      else if (/not found/.test(node.textContent ?? "")) end(false);
    });
    observer.observe(node, { childList: true, characterData: true, subtree: true });
    const late = setTimeout(() => end(shown()), PATIENCE_MILLISECONDS);
  });
}

function liveRenderer(rendermime: RenderMime, data: Record<string, unknown>): Renderer | null {
  try {
    const made = rendermime.createRenderer(WIDGET_VIEW);
    void made.renderModel(mimeModel(data)).catch(() => {});
    return made;
  } catch {
    return null; // no widget manager
  }
}

type Host = Widget & Layout;

interface InCell {
  model: string;
  leave: (docked: Widget) => void;
}

export class Outputs {
  /** Docked views by the cell that they come from, or by what they are. */
  private readonly docked = new Map<string, Widget>();
  /** What takes a view out of its cell, by node. */
  private readonly inCell = new WeakMap<Node, InCell>();

  constructor(
    private readonly app: App,
    private readonly made: Modules,
  ) {}

  /** Adds the renderer to a notebook; before that of widgets, which knows nothing of saved states. */
  serve(panel: NotebookPanel): void {
    const { rendermime } = panel.content;
    const createRenderer = () => this.renderer(panel);
    rendermime.addFactory({ safe: true, mimeTypes: [SAVED], createRenderer }, -20);
  }

  private renderer(panel: NotebookPanel): Renderer {
    const host = new this.made.widgets.Panel();
    host.addClass("workbench-output");
    const renderModel = (model: MimeModel) => this.fill(host, panel, model);
    return Object.assign(host, { renderModel }) as unknown as Renderer;
  }

  private async fill(host: Host, panel: NotebookPanel, model: MimeModel): Promise<void> {
    const saved = model.data[SAVED] as Saved;
    const view = model.data[WIDGET_VIEW] ?? { model_id: saved.model, version_major: 2, version_minor: 0 };
    const data = { [WIDGET_VIEW]: view };
    const live = liveRenderer(panel.content.rendermime, data);
    if (live) host.addWidget(live);
    const leave = (docked: Widget) => this.leaveNote(host, live, docked);
    this.inCell.set(host.node, { model: (view as { model_id: string }).model_id, leave });
    if (live && (await appears(live.node))) {
      if (saved.dock === "right" && host.isAttached) this.dock(panel, this.cellOf(panel, host.node), saved, host.node);
      return;
    }
    if (host.isDisposed) return;
    if (!live && panel.sessionContext.session?.kernel) this.sayWhatIsMissing(host);
    await this.showSaved(host, live, saved, model);
  }

  /** The kernel runs, but nothing in this JupyterLab can talk to its widgets. */
  private sayWhatIsMissing(host: Host): void {
    const note = document.createElement("p");
    note.className = "workbench-missing";
    note.setAttribute("role", "note");
    note.textContent = NO_MANAGER;
    host.node.append(note);
  }

  private async showSaved(host: Host, live: Widget | null, saved: Saved, model: MimeModel): Promise<void> {
    const place = document.createElement("div");
    host.node.append(place);
    if (live) live.node.hidden = true;
    try {
      const end = await drawSaved(place, saved);
      host.disposed.connect(end);
      if (live) this.replaceWhenLive(live, place, end);
    } catch (error) {
      console.error(error);
      this.showPicture(place, model);
    }
  }

  /** What every other front end shows: the picture, or the view in words. */
  private showPicture(place: HTMLElement, model: MimeModel): void {
    const text = String(model.data["text/html"] ?? "");
    const picture = new DOMParser().parseFromString(text, "text/html").querySelector("img");
    if (!picture?.src.startsWith("data:image/")) {
      place.textContent = String(model.data["text/plain"] ?? "");
      return;
    }
    const shown = document.createElement("img");
    shown.src = picture.src;
    shown.alt = picture.alt;
    place.replaceChildren(shown);
  }

  /** The kernel may come back with its widgets; then the live view takes over. */
  private replaceWhenLive(live: Widget, place: HTMLElement, end: () => void): void {
    const observer = new MutationObserver(() => {
      if (!live.node.firstElementChild) return;
      observer.disconnect();
      end();
      place.remove();
      live.node.hidden = false;
    });
    observer.observe(live.node, { childList: true });
    live.disposed.connect(() => observer.disconnect());
  }

  private cellOf(panel: NotebookPanel, node: Node): Cell | null {
    return panel.content.widgets.find((cell) => cell.node.contains(node)) ?? null;
  }

  /** Shows a widget of the kernel beside the notebook, in place of what its cell showed there before. */
  dock(panel: NotebookPanel, cell: Cell | null, what: { model: string; title: string }, from?: Node): Widget | null {
    const live = liveRenderer(panel.content.rendermime, {
      [WIDGET_VIEW]: { model_id: what.model, version_major: 2, version_minor: 0 },
    });
    if (!live) return null;
    live.addClass("workbench-dock");
    const area = new this.made.apputils.MainAreaWidget({ content: live });
    const key = cell ? cell.model.id : what.title;
    area.id = `workbench-${key}-${Date.now()}`;
    area.title.label = what.title;
    area.title.caption = `${what.title}, from ${panel.context.path}`;
    area.title.closable = true;
    const before = this.docked.get(key);
    const place = before?.isAttached ? { mode: "tab-after", ref: before.id } : { mode: "split-right", ref: panel.id };
    const options = { ...place, activate: false }; // the reader goes on in the notebook
    this.app.shell.add(area, "main", options);
    before?.dispose();
    this.docked.set(key, area);
    area.disposed.connect(() => this.docked.get(key) === area && this.docked.delete(key));
    panel.disposed.connect(() => area.dispose());
    setHome(area.node, panel, cell);
    if (from) this.inCell.get(from)?.leave(area);
    return area;
  }

  /** Docks the view that an event came from; false where its output is not one of ours. */
  dockFrom(panel: NotebookPanel, cell: Cell | null, title: string, path: readonly EventTarget[]): boolean {
    const node = path.find((each) => this.inCell.has(each as Node)) as Node | undefined;
    const known = node && this.inCell.get(node);
    return known !== undefined && this.dock(panel, cell, { model: known.model, title }, node) !== null;
  }

  /** In the cell, only a line says where the view is; it comes back when it is closed there. */
  private leaveNote(host: Host, live: Widget | null, docked: Widget): void {
    const back = document.createElement("button");
    back.className = "jp-mod-styled workbench-back";
    back.textContent = "Shown next to the notebook. Show it here";
    back.addEventListener("click", () => docked.dispose());
    if (live) live.node.hidden = true;
    host.node.append(back);
    docked.disposed.connect(() => {
      back.remove();
      if (live && !live.isDisposed) live.node.hidden = false;
    });
  }
}
