import { expect, it } from "vitest";
import { binary, offlineModel } from "./offline-model";

it("bytes are read back from base64", () => {
  const made = binary({ a: [{ "wb-base64": "AQI=" }], b: 1 }) as { a: DataView[]; b: number };
  expect([made.a[0].getUint8(0), made.a[0].getUint8(1), made.b]).toEqual([1, 2, 1]);
});

it("tells who listens of changes, and answers requests that there is no kernel", async () => {
  const model = offlineModel({ settings: 1 });
  const heard: unknown[] = [];
  const hear = ((_: unknown, value: unknown) => heard.push(value)) as (...values: never[]) => void;
  model.on("change:settings", hear);
  model.set("settings", 2);
  model.set("settings", 2);
  model.off("change:settings", hear);
  model.set("settings", 3);
  expect(heard).toEqual([2]);
  const reply = new Promise((done) => model.on("msg:custom", done as (...values: never[]) => void));
  model.send({ kind: "request", id: "7" });
  expect(await reply).toMatchObject({ id: "7", error: { message: expect.stringContaining("no kernel") } });
});
