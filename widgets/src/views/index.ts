// Every view by the name that Python gives it. To add one: see ../README.md.
import type { RenderView } from "../lib/view";
import { lazy } from "./lazy";

export const VIEWS: Record<string, RenderView> = {
  timeline: lazy("runs", "timeline"),
  run: lazy("runs", "run"),
  devices: lazy("runs", "devices"),
};
