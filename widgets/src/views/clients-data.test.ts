import { expect, it } from "vitest";
import type { ClientsState } from "../lib/states";
import { clientDetails, clientName, explainTime, timeColumn } from "./clients-data";

const seconds = { key: "seconds", label: "time", unit: "seconds", kind: "measured" };
const examples = { key: "examples", label: "examples", unit: "count", kind: "" };

it("a measured time counts before an estimated one", () => {
  const estimated = { ...seconds, kind: "estimated" };
  expect(timeColumn([examples, estimated, seconds])).toBe(2);
  expect(timeColumn([examples])).toBe(-1);
});

it("a client that is late because it has more examples is explained by them", () => {
  const text = explainTime(
    [seconds, examples],
    [
      [1, 2, 3, 8],
      [10, 20, 30, 80],
    ],
    3,
  );
  expect(text).toContain("The slowest of 4: 2.29 × the mean");
  expect(text).toContain("examples (2.29 × the mean, correlation with time 1.00)");
});

it("noise is not explained by work that does not go with time", () => {
  const text = explainTime(
    [seconds, examples],
    [
      [9, 1, 1, 1, 1, 1],
      [13, 20, 2, 20, 2, 20],
    ],
    0,
  );
  expect(text).toContain("No pattern");
  expect(text).toContain("measure several rounds");
});

it("a time that is the sum of its parts is explained by the part that holds the delay", () => {
  const simulated = (key: string) => ({ key, label: key, unit: "seconds", kind: "simulated" });
  const columns = [simulated("round"), simulated("computing"), simulated("uploading"), examples];
  const rounds = [
    [2, 2, 2, 14],
    [1, 1, 1, 13],
    [1, 1, 1, 1],
    [5, 6, 7, 5],
  ];
  expect(explainTime(columns, rounds, 3)).toContain(
    "100 % of its excess over the mean is computing: 13 s, 3.25 × the mean",
  );
  const alone = [[1, 1, 1, 13], rounds[1], Array(4).fill(Number.NaN), rounds[3]]; // nothing to upload
  expect(explainTime(columns, alone, 3)).toContain("100 % of its excess over the mean is computing");
});

it("equal work is said to be equal", () => {
  expect(
    explainTime(
      [seconds, examples],
      [
        [9, 1, 1],
        [5, 5, 5],
      ],
      0,
    ),
  ).toContain("all clients have the same counted work");
});

it("nothing is said of time where none is known", () => {
  expect(explainTime([examples], [[1, 2]], 0)).toBeNull();
});

it("a nested client is named by its group", () => {
  const groups = { outer: "pods", inner: "clients", size: 32 };
  expect(clientName({ groups, group_size: 1 }, 70)).toBe("pod 2, client 6");
  expect(clientName({ groups: null, group_size: 1 }, 70)).toBe("client 70");
});

it("a row that stands for many clients says which", () => {
  expect(clientName({ groups: null, group_size: 100 }, 2)).toBe("clients 200 to 299");
});

it("details name the devices and leave out what is zero", () => {
  const clients: ClientsState = {
    count: 2,
    group_size: 1,
    measuring: "",
    placement: "2 clients",
    columns: [{ key: "flops", label: "FLOPs", unit: "flops", kind: "predicted" }],
    ranges: [[0, 2, [4], ["cpu:4"]]],
    neighbours: true,
    shares: [],
    stage: "1",
    sentence: "",
    groups: null,
  };
  const { title, blocks } = clientDetails(clients, [[0, 5]], 0);
  expect(title).toBe("Client 0");
  expect(blocks[0]).toMatchObject({
    rows: [
      ["client", "0 of 0 to 1"],
      ["device", "cpu:4"],
    ],
  });
});
