// What is measured while a program runs: a part of the front end that is loaded when it is first needed.
export { timeline } from "./timeline";
