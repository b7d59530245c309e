/** The least a Hono service can do: the same answer, with nothing behind it. What the gateway is measured against. */
import { serve } from "@hono/node-server";
import { Hono } from "hono";

const answer = {
  id: "agt_01m7eh2z1s5xn8yk7tvt5ptw4f",
  tenant_id: "ten_01m7eh2yxbz3tyx3aznsnr5cea",
  name: "demo-agent",
  description: null,
  status: "active",
  delivery_mode: "poll",
  client_type: "other",
  team_id: null,
  created_at: "2026-11-15T02:37:53.083Z",
  updated_at: "2026-11-15T02:37:53.083Z",
};
const app = new Hono().get("/agents/:id", (c) => c.json(answer));
serve(
  { fetch: app.fetch, hostname: "127.0.0.1", port: 0 },
  ({ port }) => console.log(`listening on http://127.0.0.1:${port}`),
);
process.once("SIGTERM", () => process.exit(0));
