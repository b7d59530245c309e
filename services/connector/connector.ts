/** What the connector service answers: whether a broker can be reached as it is registered. */
import { notFound } from "../../contracts/errors.ts";
import type { AmqpSecrets, ConnectorRoute } from "../../contracts/ingestion.ts";
import type { Handlers } from "../../contracts/operations.ts";
import { openLink } from "./amqp.ts";

export function connector(deps: {
  readonly find: (id: string) => Promise<{ route: ConnectorRoute; secrets: AmqpSecrets } | undefined>;
  readonly open?: typeof openLink;
}): Handlers<"connector"> {
  const { find, open = openLink } = deps;
  return {
    async "operator.connector_test"({ body: { tenant, id } }) {
      const found = await find(id);
      if (found?.route.tenant !== tenant) throw notFound("connector", id);
      const { route: { settings }, secrets } = found;
      const place = `${settings.address} at ${settings.host}:${settings.port}`;
      try {
        // Without credit the broker sends nothing.
        await using _link = await open(`sensorium-test-${id}`, settings, secrets, () => {});
        return { ok: true, detail: `${place} can be read` };
      } catch (error) {
        return { ok: false, detail: `${place} cannot be read: ${(error as Error).message}` };
      }
    },
  };
}
