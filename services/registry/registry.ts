/** The registry: who exists in a tenant, what they may do, what they care about. */
import type { KeyObject } from "node:crypto";
import type { ConnectorState } from "../../contracts/ingestion.ts";
import type { Handlers } from "../../contracts/operations.ts";
import type { Announcer } from "./announce.ts";
import { agentHandlers, type FirstPushSecret } from "./handlers/agents.ts";
import { authHandlers } from "./handlers/auth.ts";
import { channelHandlers } from "./handlers/channels.ts";
import { connectorHandlers } from "./handlers/connectors.ts";
import { interestHandlers } from "./handlers/interests.ts";
import { keyHandlers } from "./handlers/keys.ts";
import { operatorHandlers } from "./handlers/operator.ts";
import { webhookHandlers } from "./handlers/webhooks.ts";
import type { Stores } from "./store/stores.ts";
import type { Tokens } from "./tokens.ts";

export interface RegistryDeps extends Stores {
  readonly announcer: Pick<Announcer, "change">;
  readonly tokens: Tokens;
  readonly hashKey: KeyObject;
  readonly webhookKey: KeyObject;
  readonly connectorKey: KeyObject;
  readonly firstPushSecret: FirstPushSecret;
  readonly forget: (connector: string) => Promise<void>;
  readonly stateOf: (connector: string) => Promise<ConnectorState | undefined>;
}

export const registry = (deps: RegistryDeps): Handlers<"registry"> => ({
  ...authHandlers(deps),
  ...agentHandlers(deps),
  ...keyHandlers(deps),
  ...interestHandlers(deps),
  ...channelHandlers(deps),
  ...operatorHandlers(deps),
  ...webhookHandlers(deps),
  ...connectorHandlers(deps),
});
