// The parts of JupyterLab 4 that the extension uses. They come from JupyterLab's own modules when the page loads, so
// that nothing of it is bundled; these types say what is asked of them.

export interface Signal<Sender, Args> {
  connect(slot: (sender: Sender, args: Args) => void): void;
}

export interface Widget {
  id: string;
  readonly node: HTMLElement;
  readonly isDisposed: boolean;
  readonly isAttached: boolean;
  readonly title: { label: string; caption: string; closable: boolean; iconClass: string };
  readonly disposed: Signal<Widget, void>;
  addClass(name: string): void;
  removeClass(name: string): void;
  dispose(): void;
}
export interface Layout {
  addWidget(widget: Widget): void;
  removeWidget(widget: Widget): void;
}

export interface MimeModel {
  readonly data: Readonly<Record<string, unknown>>;
  readonly metadata: Readonly<Record<string, unknown>>;
  readonly trusted: boolean;
  setData(options: object): void;
}
export interface Renderer extends Widget {
  renderModel(model: MimeModel): Promise<void>;
}
export interface RenderMime {
  addFactory(factory: object, rank?: number): void;
  createRenderer(mimeType: string): Renderer;
}

export interface CellEditor {
  lineCount: number;
  getLine(line: number): string | undefined;
  getOffsetAt(position: { line: number; column: number }): number;
  setCursorPosition(position: { line: number; column: number }): void;
  revealPosition(position: { line: number; column: number }): void;
  focus(): void;
  /** CodeMirror's own view. */
  editor?: { coordsAtPos(offset: number): { left: number; right: number; top: number; bottom: number } | null };
  readonly host: HTMLElement;
}
export interface Cell extends Widget {
  readonly model: { type: string; id: string; executionCount?: number | null; sharedModel: { getSource(): string } };
  readonly editor: CellEditor | null;
  readonly ready: Promise<void>;
  inputHidden: boolean;
}
export interface Notebook extends Widget {
  readonly widgets: readonly Cell[];
  readonly rendermime: RenderMime;
  activeCellIndex: number;
  readonly activeCell: Cell | null;
  mode: "command" | "edit";
  readonly model: {
    sharedModel: { insertCell(at: number, cell: object): unknown };
    readonly isDisposed: boolean;
  } | null;
  scrollToItem(index: number, align?: string): Promise<void>;
}
export interface KernelReply {
  content: {
    status: string;
    user_expressions?: Record<string, { status: string; data?: Record<string, string>; evalue?: string }>;
  };
}
export interface Kernel {
  requestExecute(
    content: { code: string; silent: boolean; store_history: boolean; user_expressions: Record<string, string> },
    dispose?: boolean,
  ): { done: Promise<KernelReply> };
}
export interface NotebookPanel extends Widget {
  readonly content: Notebook;
  readonly context: { path: string; ready: Promise<void> };
  readonly sessionContext: {
    ready: Promise<void>;
    session: { kernel: Kernel | null } | null;
    readonly kernelDisplayName: string;
  };
}
export interface NotebookTracker {
  readonly currentWidget: NotebookPanel | null;
  readonly widgetAdded: Signal<NotebookTracker, NotebookPanel>;
  forEach(visit: (panel: NotebookPanel) => void): void;
  find(test: (panel: NotebookPanel) => boolean): NotebookPanel | undefined;
}

export interface App {
  readonly commands: {
    addCommand(id: string, options: object): unknown;
    execute(id: string, args?: object): Promise<unknown>;
    hasCommand(id: string): boolean;
  };
  readonly contextMenu: { addItem(options: object): unknown };
  readonly shell: {
    add(widget: Widget, area: string, options?: object): void;
    activateById(id: string): void;
  };
}
export interface Palette {
  addItem(item: { command: string; category: string; args?: object }): unknown;
}
export interface Launcher {
  add(item: { command: string; category: string; rank?: number; args?: object }): unknown;
}

/** What JupyterLab's modules export, as far as it is used. */
export interface Modules {
  notebook: { INotebookTracker: object };
  apputils: { ICommandPalette: object; MainAreaWidget: new (options: { content: Widget }) => Widget };
  launcher: { ILauncher: object };
  widgets: { Panel: new () => Widget & Layout; Widget: new () => Widget };
}

type Shared = Record<string, Record<string, { get(): Promise<() => unknown> | (() => unknown) }>>;

let scope: Shared = {};
export const setScope = (given: Shared): void => {
  scope = given;
};

/** A module that JupyterLab shares with its extensions. */
export async function shared<T>(name: string): Promise<T> {
  const offered = Object.values(scope[name] ?? {})[0];
  if (!offered) throw new Error(`JupyterLab does not share the module ${name}`);
  return (await offered.get())() as T;
}

export async function modules(): Promise<Modules> {
  const [notebook, apputils, launcher, widgets] = await Promise.all([
    shared<Modules["notebook"]>("@jupyterlab/notebook"),
    shared<Modules["apputils"]>("@jupyterlab/apputils"),
    shared<Modules["launcher"]>("@jupyterlab/launcher"),
    shared<Modules["widgets"]>("@lumino/widgets"),
  ]);
  return { notebook, apputils, launcher, widgets };
}
