// Builds the bundles that the Python package ships: `node build.mjs`, `--watch` to rebuild on change, `--check` to say
// whether the committed bundles are what the sources build to.
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build, context } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "workbench_widgets", "static", "built");
// `import code from "./worker?text"`: the module's own bundle as a text, for a worker that needs no address to load from.
const texts = {
  name: "text",
  setup(building) {
    building.onResolve({ filter: /\?text$/ }, ({ path, resolveDir }) => ({
      path: join(resolveDir, path.replace("?text", ".ts")),
      namespace: "text",
    }));
    building.onLoad({ filter: /.*/, namespace: "text" }, async ({ path }) => {
      const { outputFiles, metafile } = await build({
        ...options,
        entryPoints: [path],
        outdir: undefined,
        metafile: true,
        plugins: [],
      });
      const watchFiles = Object.keys(metafile.inputs).map((each) => join(here, each));
      return { contents: outputFiles[0].text, loader: "text", watchFiles };
    });
  },
};
const options = {
  plugins: [texts],
  absWorkingDir: here,
  entryPoints: {
    workbench: "src/main.ts",
    editor: "src/editor/index.ts",
    runs: "src/runs/index.ts",
    player: "src/player/index.ts",
    graph: "src/graph/index.ts",
    styles: "src/styles/index.css",
    offline: "src/offline.ts",
    saved: "src/saved.ts",
  },
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  charset: "utf8",
  legalComments: "none",
  outdir: target,
  write: false,
};

// The labextension: a script, since that is how JupyterLab loads it.
const labextension = {
  ...options,
  entryPoints: { lab: "src/lab/index.ts" },
  format: "iife",
  loader: { ".css": "text" },
  outdir: join(here, "workbench_widgets", "labextension", "static"),
};

/** Only files that differ are written, so that a rebuild of the same sources touches nothing. */
function write(files) {
  for (const { path, contents } of files) {
    mkdirSync(dirname(path), { recursive: true });
    if (!existsSync(path) || !readFileSync(path).equals(contents)) writeFileSync(path, contents);
    console.log(`${basename(path)}: ${contents.length} bytes, ${gzipSync(contents).length} gzipped`);
  }
}

if (process.argv.includes("--watch")) {
  const watcher = { name: "write", setup: (made) => made.onEnd((result) => write(result.outputFiles ?? [])) };
  for (const each of [options, labextension])
    await (await context({ ...each, plugins: [...each.plugins, watcher] })).watch();
} else {
  const built = await Promise.all([build(options), build(labextension)]);
  const outputFiles = built.flatMap((each) => each.outputFiles);
  if (process.argv.includes("--check")) {
    const stale = outputFiles.filter(({ path, contents }) => !existsSync(path) || !readFileSync(path).equals(contents));
    if (stale.length) {
      console.error(`Not what the sources build to: ${stale.map(({ path }) => path).join(", ")}. Run "npm run build".`);
      process.exit(1);
    }
  } else {
    rmSync(target, { recursive: true, force: true });
    write(outputFiles);
  }
}
