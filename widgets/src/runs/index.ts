// What is measured while a program runs: a part of the front end that is loaded when it is first needed.
export { devices } from "./devices";
export { playground } from "./playground";
export { run } from "./run";
export { timeline } from "./timeline";
