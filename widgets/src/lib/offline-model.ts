// A model that holds a widget's state and has no kernel: for exported pages and for notebooks that are only read.
import type { Model } from "./model";

type State = Record<string, unknown>;
type Listener = (...values: unknown[]) => void;
export const NO_KERNEL = "This page has no kernel. Open the notebook and run its cells to ask for new numbers.";

/** Values as Python wrote them, with bytes again where base64 stands for them. */
export function binary(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(binary);
  if (!value || typeof value !== "object") return value;
  const held = value as State;
  if (typeof held["wb-base64"] === "string")
    return new DataView(Uint8Array.from(atob(held["wb-base64"]), (each) => each.charCodeAt(0)).buffer);
  return Object.fromEntries(Object.entries(held).map(([key, item]) => [key, binary(item)]));
}

/** Text that was compressed by Python's gzip and written as base64. */
export async function unpack(packed: string): Promise<string> {
  const bytes = Uint8Array.from(atob(packed), (each) => each.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

export function offlineModel(given: State): Model {
  const state: State = { ...given, offline: true };
  const listeners: Record<string, Listener[]> = {};
  const emit = (name: string, ...values: unknown[]) => {
    for (const callback of [...(listeners[name] ?? [])]) callback(...values);
  };
  return {
    get: (name) => state[name],
    set(name, value) {
      if (state[name] === value) return;
      state[name] = value;
      emit(`change:${name}`, this, value);
    },
    save_changes() {},
    send(content) {
      const asked = content as { kind?: string; id?: string };
      const reply = { kind: "response", id: asked.id, error: { message: NO_KERNEL } };
      if (asked.kind === "request") setTimeout(() => emit("msg:custom", reply, []));
    },
    on: (name, callback) => {
      (listeners[name] ??= []).push(callback as Listener);
    },
    off: (name, callback) => {
      listeners[name] = (listeners[name] ?? []).filter((each) => each !== callback);
    },
  };
}
