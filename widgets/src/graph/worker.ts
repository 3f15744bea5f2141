// Lays graphs out apart from the page, which stays quick meanwhile. Imported where a page may have no workers.
import { arrange } from "./layout";
import type { Arc, Box } from "./model";
import type { Layout } from "./routes";

export type Size = readonly [width: number, height: number];
export interface Job {
  boxes: readonly Box[];
  arcs: readonly Arc[];
  sizes: ReadonlyMap<number, Size>;
}
export interface Done {
  serial: number;
  layout?: Layout;
  error?: string;
}

const NONE: Size = [0, 0];
export const layOut = ({ boxes, arcs, sizes }: Job): Layout => arrange(boxes, arcs, ({ id }) => sizes.get(id) ?? NONE);

declare const WorkerGlobalScope: (new () => object) | undefined;
if (typeof WorkerGlobalScope !== "undefined" && globalThis instanceof WorkerGlobalScope)
  addEventListener("message", ({ data }: MessageEvent<Job & { serial: number }>) => {
    const { serial } = data;
    try {
      postMessage({ serial, layout: layOut(data) } satisfies Done);
    } catch (error) {
      postMessage({ serial, error: String(error) } satisfies Done);
    }
  });
