export { graphPane } from "./pane";
