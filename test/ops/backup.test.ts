/** The plain way of the runbook to back up: stop, copy, start. */
import { execFile } from "node:child_process";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { type Client, client } from "../../contracts/client.ts";
import { eventually } from "../support/eventually.ts";
import { bootstrapOf, instance } from "../support/instance.ts";
import { temporaryFolder } from "../support/servers.ts";

const run = promisify(execFile);
const loggedIn = async (baseUrl: string, key: string): Promise<Client> =>
  client(baseUrl, (await client(baseUrl)("auth.token", { body: { api_key: key } })).access_token);
const event = (id: string) => ({ specversion: "1.0" as const, type: "com.shop.order.created", source: "/shop", id });

test(
  "a stopped instance is one folder: copied elsewhere it has its keys, interests, events and queues, and shows a trace",
  async () => {
    await using folder = await temporaryFolder();
    const [before, after] = [join(folder.path, "before"), join(folder.path, "after")];
    const archive = join(folder.path, "backup.tar");
    const first = await instance(before);
    const made = await bootstrapOf(before);
    const path = { id: made.agent_id! };
    const call = await loggedIn(first.baseUrl, made.agent_key!);
    const body = { event_type: "com.shop.*", priority: 0, enrichment_depth: "none" as const };
    const interest = await call("interests.create", { path, body });
    for (const id of ["acknowledged", "pending"]) await call("events.publish", { body: event(id) });
    const { deliveries } = await eventually(async () => {
      const polled = await call("delivery.poll", { query: { wait: 5, limit: 1 } });
      return polled.count > 0 && polled;
    }, "the first delivery");
    await call("delivery.ack", { body: { delivery_ids: deliveries.map(({ id }) => id) } });
    expect(await first.stop()).toBe(0);

    await run("tar", ["-C", before, "-cpf", archive, "."]);
    await rm(before, { recursive: true });
    await mkdir(after);
    await run("tar", ["-C", after, "-xpf", archive]);

    await using second = await instance(after, { args: ["--trace"] });
    const again = await loggedIn(second.baseUrl, made.agent_key!);
    expect((await again("interests.list", { path })).interests).toEqual([interest]);
    const recent = await again("delivery.recent", { path, query: { limit: 10 } });
    expect(recent.events.map(({ event_id }) => event_id)).toEqual([deliveries[0]!.event_id]);
    const left = await again("delivery.poll", { query: { wait: 5 } });
    const ids = new Set(["acknowledged", "pending"]);
    ids.delete(deliveries[0]!.event_id);
    expect(left.deliveries.map(({ event_id }) => event_id)).toEqual([...ids]);
    for (const id of ["acknowledged", "pending"]) {
      expect(await again("events.publish", { body: event(id) }), "an id from before is still known").toMatchObject({
        status: "duplicate",
      });
    }

    await again("events.publish", { body: event("new") });
    const tree =
      /trace \w{32}\n.* POST \/v1\/events {2}202\n(?:.*\n)*?.* {10}process EVENTS\n.* {12}send DELIVERIES {2}×1\n/;
    await eventually(() => tree.test(second.output()), "the trace of the new event, as a tree");
  },
  120_000,
);
