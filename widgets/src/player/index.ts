// Rounds, collectives and shardings, played step by step: a part of the front end that is loaded when it is first needed.
export { player } from "./player";
