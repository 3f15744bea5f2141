// Every view by the name that Python gives it. To add one: see ../README.md.

import type { RenderView, ViewName } from "../lib/view";
import { advice } from "./advice";
import { clients } from "./clients";
import { compare } from "./compare";
import { cost } from "./cost";
import { hlo } from "./hlo";
import { lazy } from "./lazy";
import { memory } from "./memory";
import { mesh } from "./mesh";
import { operations } from "./operations";
import { picture } from "./picture";
import { program } from "./program";
import { propagation } from "./propagation";
import { sharding } from "./sharding";

const views: { [V in Exclude<ViewName, "explorer">]: RenderView<V> } = {
  timeline: lazy("runs", "timeline"),
  run: lazy("runs", "run"),
  devices: lazy("runs", "devices"),
  overlay: lazy("runs", "overlay"),
  measured: lazy("runs", "measured"),
  split: lazy("runs", "split"),
  allocators: lazy("runs", "allocators"),
  launch: lazy("runs", "launch"),
  advice,
  program,
  operations,
  clients,
  mesh,
  sharding,
  propagation,
  picture,
  hlo,
  memory,
  compare,
  cost,
  player: lazy("player", "player"),
  playground: lazy("runs", "playground"),
};

export const VIEWS: Record<string, RenderView> = views;
