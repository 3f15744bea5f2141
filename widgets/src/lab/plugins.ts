// What JupyterLab activates.
import { addCommands } from "./commands";
import type { App, Launcher, Modules, NotebookTracker, Palette } from "./host";
import { Outputs } from "./output";
import { obey } from "./places";
import style from "./style.css";

function serverRoot(): string {
  const config = JSON.parse(document.getElementById("jupyter-config-data")?.textContent ?? "{}");
  return String(config.serverRoot ?? "");
}

export function plugins(made: Modules): object[] {
  const activate = (app: App, tracker: NotebookTracker, palette: Palette | null, launcher: Launcher | null) => {
    const sheet = document.createElement("style");
    sheet.textContent = style;
    document.head.append(sheet);
    document.documentElement.dataset.workbenchLab = "1"; // views show their buttons for it
    const outputs = new Outputs(app, made);
    tracker.widgetAdded.connect((_, panel) => outputs.serve(panel));
    tracker.forEach((panel) => outputs.serve(panel));
    obey(app, tracker, serverRoot(), ({ panel, at }, title, path) =>
      outputs.dockFrom(panel, panel.content.widgets[at] ?? null, title, path),
    );
    addCommands(app, tracker, outputs, palette, launcher);
  };
  return [
    {
      id: "mapreduce-workbench:notebook",
      description: "Links Workbench's views with their notebook.",
      autoStart: true,
      requires: [made.notebook.INotebookTracker],
      optional: [made.apputils.ICommandPalette, made.launcher.ILauncher],
      activate,
    },
  ];
}
