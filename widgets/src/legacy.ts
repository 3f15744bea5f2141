// Views that are still plain JavaScript modules: the context that they know, made from the present one.
import { h } from "./lib/dom";
import type { RenderView, SelectionPatch, ViewContext } from "./lib/view";

type Callback = () => void;

/** What `static/common.js` calls a context. */
export function legacyContext(context: ViewContext, root: HTMLElement) {
  const listen = (events: string, callback: Callback) => {
    for (const event of events.split(" ")) {
      if (event === "change:settings") context.onSettings(callback);
      else if (event === "change:selection") context.onSelection(callback);
      else if (event === "change:live") context.onLive(callback);
    }
  };
  return {
    root,
    listen,
    get data() {
      return new Proxy({}, { get: (_, name) => context.state(String(name)) });
    },
    get glossary() {
      return context.glossary;
    },
    get lessons() {
      return context.lessons;
    },
    get selection() {
      return context.selection;
    },
    array: context.array,
    live: context.live,
    setting: context.setting,
    set: context.set,
    select: (patch: SelectionPatch) => context.select(patch),
    onSelection: (callback: Callback) => context.onSelection(callback),
    onData: (callback: Callback) => context.onState(callback),
    onLive: (callback: Callback) => context.onLive(callback),
    onTheme: (callback: Callback) => context.theme.onChange(callback),
    cleanup: (callback: Callback) => context.signal.addEventListener("abort", callback),
    request: async (name: string, args: object) => ({ value: await context.request<unknown>(name, args), buffers: [] }),
    say: context.say,
    fail: context.fail,
  };
}

export const fromLegacy =
  (build: (context: ReturnType<typeof legacyContext>) => void): RenderView =>
  (host, context) => {
    const root = h("div", { class: "wb-scrolls" });
    host.append(root);
    build(legacyContext(context, root));
  };
