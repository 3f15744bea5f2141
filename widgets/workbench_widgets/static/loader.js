// All the JavaScript that a widget carries. The rest is on the page already, or comes from a model that every view of a
// kernel shares, or (where a host has no such models) from the kernel.
const VIEW = "%VIEW%";
const HASHES = JSON.parse('%HASHES%');

const loaded = (globalThis.__workbenchLoaded ??= new Map());

async function fromModel(model, name) {
  const reference = (model.get("chunks") ?? {})[name];
  const found = await model.widget_manager.get_model(reference.slice("IPY_MODEL_".length));
  return { code: found.get("code"), css: found.get("css") };
}

function fromKernel(model, name) {
  return new Promise((done) => {
    const receive = (content) => {
      if (content?.kind !== "chunk" || content.name !== name) return;
      model.off("msg:custom", receive);
      done(content);
    };
    model.on("msg:custom", receive);
    model.send({ kind: "chunk", name });
  });
}

async function find(model, name) {
  const known = globalThis.__workbenchChunks?.[name]; // an exported page
  if (known) return known;
  try {
    const found = await fromModel(model, name);
    if (found.code) return found;
  } catch {} // a host without shared models
  return fromKernel(model, name);
}

function load(model, name) {
  const key = `${name}-${HASHES[name]}`;
  if (!loaded.has(key)) {
    const made = find(model, name).then(async ({ code, css }) => {
      const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
      try {
        return { css, module: await import(address) };
      } finally {
        URL.revokeObjectURL(address);
      }
    });
    made.catch(() => loaded.delete(key));
    loaded.set(key, made);
  }
  return loaded.get(key);
}

/** The style sheet, once per page, or per shadow tree where the host keeps widgets in one. */
function dress(el, css) {
  const root = el.getRootNode();
  const place = root instanceof ShadowRoot ? root : document.head;
  const key = HASHES.workbench;
  if (place.querySelector(`style[data-workbench="${key}"]`)) return;
  const style = document.createElement("style");
  style.dataset.workbench = key;
  style.textContent = css;
  place.append(style);
}

export default {
  async render({ model, el }) {
    const { module, css } = await load(model, "workbench");
    dress(el, css);
    return module.render({ model, el, view: VIEW, loadChunk: async (name) => (await load(model, name)).module });
  },
};
