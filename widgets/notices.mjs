// Writes the licences of the packages whose code the bundles hold: `node notices.mjs`. Exported pages hold the file too.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "workbench_widgets", "static", "third-party-licenses.txt");
const { packages } = JSON.parse(readFileSync(join(here, "package-lock.json"), "utf8"));

/** The notice and the terms of a package's licence file. */
function licenceOf(place) {
  const file = readdirSync(join(here, place)).find((name) => /^licen[cs]e(\.|$)/i.test(name));
  if (!file) throw new Error(`${place} has no licence file: write its terms by hand, or leave the package out.`);
  const text = readFileSync(join(here, place, file), "utf8");
  const start = text.search(/^Permission/m);
  const notices = text.split("\n").filter((line) => /^copyright/i.test(line.trim()));
  if (start < 0 || !notices.length) throw new Error(`${place}/${file} is no MIT or ISC licence that can be read.`);
  return { notices: notices.map((line) => line.trim()), terms: text.slice(start).replace(/\s+/g, " ").trim() };
}

const groups = new Map();
for (const [place, { version, dev, optional }] of Object.entries(packages)) {
  if (!place || dev || optional) continue;
  const { notices, terms } = licenceOf(place);
  const entry = `${place.replace("node_modules/", "")} ${version}\n${notices.map((line) => `    ${line}`).join("\n")}`;
  groups.set(terms, [...(groups.get(terms) ?? []), entry]);
}

/** A paragraph in lines of at most 110 characters. */
const wrapped = (text) => text.replace(/(?![^\n]{1,110}$)([^\n]{1,110})\s/g, "$1\n");
const parts = [...groups].map(([terms, entries]) => `${entries.join("\n")}\n\n${wrapped(terms)}\n`);
const head = "The views of Workbench hold code of these packages, under the terms below each group.\n";
writeFileSync(target, [head, ...parts].join(`\n${"-".repeat(80)}\n\n`));
