/** Every store of the registry over one pool. */
import type { Sql } from "../../../runtime/database.ts";
import { type AgentStore, agentStore } from "./agents.ts";
import { type ChannelStore, channelStore } from "./channels.ts";
import { type InterestStore, interestStore } from "./interests.ts";
import { type KeyStore, keyStore } from "./keys.ts";
import { type SigningKeyStore, signingKeyStore } from "./signing-keys.ts";
import { type TenantStore, tenantStore } from "./tenants.ts";

export interface Stores {
  readonly tenants: TenantStore;
  readonly agents: AgentStore;
  readonly keys: KeyStore;
  readonly interests: InterestStore;
  readonly channels: ChannelStore;
  readonly signingKeys: SigningKeyStore;
}

export const stores = (sql: Sql): Stores => ({
  tenants: tenantStore(sql),
  agents: agentStore(sql),
  keys: keyStore(sql),
  interests: interestStore(sql),
  channels: channelStore(sql),
  signingKeys: signingKeyStore(sql),
});
