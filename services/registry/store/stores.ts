/** Every store of the registry over one pool. */
import type { Sql } from "../../../runtime/database.ts";
import { type AgentStore, agentStore } from "./agents.ts";
import { type ChannelStore, channelStore } from "./channels.ts";
import { type ConnectorStore, connectorStore } from "./connectors.ts";
import { type InterestStore, interestStore } from "./interests.ts";
import { type KeyStore, keyStore } from "./keys.ts";
import { type SigningKeyStore, signingKeyStore } from "./signing-keys.ts";
import { type TenantStore, tenantStore } from "./tenants.ts";
import { type WebhookStore, webhookStore } from "./webhooks.ts";

export interface Stores {
  readonly tenants: TenantStore;
  readonly agents: AgentStore;
  readonly keys: KeyStore;
  readonly interests: InterestStore;
  readonly channels: ChannelStore;
  readonly signingKeys: SigningKeyStore;
  readonly webhooks: WebhookStore;
  readonly connectors: ConnectorStore;
}

export const stores = (sql: Sql): Stores => ({
  tenants: tenantStore(sql),
  agents: agentStore(sql),
  keys: keyStore(sql),
  interests: interestStore(sql),
  channels: channelStore(sql),
  signingKeys: signingKeyStore(sql),
  webhooks: webhookStore(sql),
  connectors: connectorStore(sql),
});
