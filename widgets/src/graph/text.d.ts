// `build.mjs` bundles such a module and gives its text.
declare module "*?text" {
  const code: string;
  export default code;
}
