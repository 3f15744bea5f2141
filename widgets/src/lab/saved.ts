// A view of a saved notebook whose kernel is gone: drawn from the state that the output holds, with this extension's code.

import type { Model } from "../lib/model";
import { binary, offlineModel, unpack } from "../lib/offline-model";

export const SAVED = "application/vnd.workbench.view+json";

export interface Saved {
  /** The widget that was shown. */
  model: string;
  title: string;
  /** Where a view that has just been made goes; in its cell by default. */
  dock?: "right";
  /** What the view shows, as gzip in base64. */
  state: string;
}
interface Unpacked {
  /** A view of the bundle, or the text of a module of its own. */
  view?: string;
  esm?: string;
  state: Record<string, unknown>;
}
interface Bundle {
  render(options: {
    model: Model;
    el: HTMLElement;
    view: string;
    loadChunk: (name: string) => Promise<unknown>;
  }): () => void;
}
interface Front {
  render(options: { model: Model; el: HTMLElement }): unknown;
}

/** Where JupyterLab serves this extension's files. */
function address(name: string): string {
  const config = JSON.parse(document.getElementById("jupyter-config-data")?.textContent ?? "{}");
  return `${config.fullLabextensionsUrl}/mapreduce-workbench/static/${name}`;
}

const load = (name: string): Promise<unknown> => import(address(`${name}.js`));

async function ownModule(esm: string): Promise<Front> {
  const made = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  try {
    return (await import(made)).default as Front;
  } finally {
    URL.revokeObjectURL(made);
  }
}

const SHEETS = ["theme.css", "workbench.css", "styles.css"];
let dressed = false;

/** The views' style, from this extension's own files: a notebook that nobody trusts brings data only. */
function dress(): void {
  if (dressed) return;
  dressed = true;
  for (const name of SHEETS) {
    const link = document.createElement("link");
    Object.assign(link, { rel: "stylesheet", href: address(name) });
    document.head.append(link);
  }
}

/** Draws it; returns what takes it away again. */
export async function drawSaved(el: HTMLElement, saved: Saved, trusted: boolean): Promise<() => void> {
  const { view, esm, state } = JSON.parse(await unpack(saved.state)) as Unpacked;
  dress();
  const model = offlineModel(binary(state) as Record<string, unknown>);
  if (view) return ((await load("workbench")) as Bundle).render({ model, el, view, loadChunk: load });
  if (!trusted) throw new Error("this view brings code of its own, and the notebook is not trusted");
  const end = (await ownModule(esm ?? "")).render({ model, el });
  return typeof end === "function" ? (end as () => void) : () => {};
}
