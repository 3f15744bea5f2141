// What is measured while a program runs: a part of the front end that is loaded when it is first needed.
export { allocators } from "./allocators";
export { devices } from "./devices";
export { launch } from "./launch";
export { measured } from "./measured";
export { overlay } from "./overlay";
export { playground } from "./playground";
export { run } from "./run";
export { split } from "./split";
export { timeline } from "./timeline";
