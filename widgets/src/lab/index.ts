// A prebuilt labextension without webpack: JupyterLab asks a container on `window._JUPYTERLAB` for its modules.
import { modules, setScope } from "./host";
import { plugins } from "./plugins";

const NAME = "mapreduce-workbench";

declare global {
  interface Window {
    _JUPYTERLAB?: Record<string, unknown>;
  }
}

window._JUPYTERLAB ??= {};
window._JUPYTERLAB[NAME] = {
  init: setScope,
  async get(module: string) {
    if (module !== "./extension") throw new Error(`${NAME} has no module ${module}`);
    const made = { __esModule: true, default: plugins(await modules()) };
    return () => made;
  },
};
