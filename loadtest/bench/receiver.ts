/** An agent that polls for what it cares about, registered as an org-admin would. */
import type { Http } from "./http.ts";
import { exchange } from "./instance.ts";

export interface Receiver {
  readonly id: string;
  readonly token: string;
}

export async function registerReceiver(
  { http, url, admin }: { readonly http: Http; readonly url: string; readonly admin: string },
  name: string,
  eventType: string,
): Promise<Receiver> {
  const { body: agent } = await http<{ id: string }>("POST", "/agents", admin, {
    name,
    delivery_mode: "poll",
    client_type: "other",
  });
  const scopes = ["receive", "interests:write"];
  const { body: minted } = await http<{ key: string }>("POST", `/agents/${agent.id}/keys`, admin, { scopes });
  const token = await exchange(url, minted.key);
  const interest = { event_type: eventType, priority: 0, enrichment_depth: "none" };
  const { status } = await http("POST", `/agents/${agent.id}/interests`, token, interest);
  if (status !== 201) throw new Error(`An interest was answered ${status}`);
  return { id: agent.id, token };
}
