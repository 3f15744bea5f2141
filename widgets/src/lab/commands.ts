// Commands, the launcher's card and the panel of devices. The kernel answers what only it can know.
import type { App, Launcher, NotebookPanel, NotebookTracker, Palette } from "./host";
import type { Outputs } from "./output";
import { insertCell } from "./places";

const CATEGORY = "Workbench";
const EXPLORE = "workbench:explore-cell";
const DEVICES = "workbench:devices";
const PLAYGROUND = "workbench:playground";

interface Answer {
  code?: string;
  run?: boolean;
  model?: string;
  message?: string;
}

/** Asks the notebook's kernel through an expression, which leaves its history and its namespace alone. */
async function ask(panel: NotebookPanel, question: string, ...values: string[]): Promise<Answer> {
  await panel.sessionContext.ready;
  const kernel = panel.sessionContext.session?.kernel;
  if (!kernel) return { message: "The notebook has no kernel: start one first." };
  const given = values.map((value) => JSON.stringify(value)).join(", ");
  const asked = `__import__("workbench.api", fromlist=["api"]).${question}(${given})`;
  const content = { code: "", silent: false, store_history: false, user_expressions: { asked } };
  const { content: reply } = await kernel.requestExecute(content).done;
  const found = reply.user_expressions?.asked;
  if (found?.status !== "ok") return { message: found?.evalue ?? "The kernel did not answer." };
  return (found.data?.["application/json"] ?? {}) as Answer;
}

class Commands {
  constructor(
    private readonly app: App,
    private readonly tracker: NotebookTracker,
    private readonly outputs: Outputs,
  ) {}

  private tell(message: string): void {
    void this.app.commands.execute("apputils:notify", { message, type: "warning", options: { autoClose: 8000 } });
  }

  async exploreCell(): Promise<void> {
    const panel = this.tracker.currentWidget;
    const cell = panel?.content.activeCell;
    if (!panel || !cell) return;
    const { code, run, message } = await ask(panel, "explore_cell", cell.model.sharedModel.getSource());
    if (message) this.tell(message);
    if (!code) return;
    insertCell({ panel, at: panel.content.widgets.indexOf(cell) }, code);
    if (run) await this.app.commands.execute("notebook:run-cell");
  }

  async devices(): Promise<void> {
    const panel = this.tracker.currentWidget;
    if (!panel) return;
    const { model, message } = await ask(panel, "device_panel");
    if (message) this.tell(message);
    if (model) this.outputs.dock(panel, null, { model, title: "Devices" });
  }

  async playground(cwd?: string): Promise<void> {
    const panel = (await this.app.commands.execute("notebook:create-new", {
      ...(cwd ? { cwd } : {}),
      kernelName: "python3",
    })) as NotebookPanel;
    await panel.context.ready;
    await panel.sessionContext.ready;
    insertCell({ panel, at: -1 }, "import workbench as wb\n\nwb.playground()");
    await this.app.commands.execute("notebook:run-cell");
  }
}

export function addCommands(
  app: App,
  tracker: NotebookTracker,
  outputs: Outputs,
  palette: Palette | null,
  launcher: Launcher | null,
): void {
  const mine = new Commands(app, tracker, outputs);
  const isEnabled = () => tracker.currentWidget !== null;
  const add = (
    id: string,
    label: string,
    caption: string,
    execute: (args: { cwd?: string }) => Promise<void>,
    always = false,
  ) =>
    app.commands.addCommand(id, {
      label,
      caption,
      execute,
      iconClass: "workbench-icon",
      ...(always ? {} : { isEnabled }),
    });
  add(
    EXPLORE,
    "Explore this cell's function",
    "Opens the explorer of the function that the cell defines or calls",
    () => mine.exploreCell(),
  );
  add(DEVICES, "Show devices next to the notebook", "Memory and load of the kernel's devices, live", () =>
    mine.devices(),
  );
  add(
    PLAYGROUND,
    "Federated playground",
    "A new notebook with an experiment to set up",
    ({ cwd }) => mine.playground(cwd),
    true,
  );
  app.contextMenu.addItem({ command: EXPLORE, selector: ".jp-Notebook .jp-CodeCell", rank: 12 });
  for (const command of [EXPLORE, DEVICES, PLAYGROUND]) palette?.addItem({ command, category: CATEGORY });
  launcher?.add({ command: PLAYGROUND, category: CATEGORY, rank: 1 });
}
