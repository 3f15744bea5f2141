// Views that are loaded when they are first opened.
import { h } from "../lib/dom";
import type { RenderView } from "../lib/view";

/** The view `name` of a chunk, which exports its views by name. */
export const lazy =
  (chunk: string, name: string): RenderView =>
  (host, context) => {
    const waiting = h("p", { class: "wb-note wb-empty", role: "status" }, "Loading the view …");
    host.append(waiting);
    context
      .chunk<Record<string, RenderView>>(chunk)
      .then((views) => {
        waiting.remove();
        if (!context.signal.aborted) views[name](host, context);
      })
      .catch((error) => {
        waiting.textContent = "The view could not be loaded.";
        context.fail(error);
      });
  };
