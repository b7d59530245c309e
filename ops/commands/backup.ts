/** Backups of a running instance, and new instances from them. */
import { resolve } from "node:path";
import type { Command } from "commander";
import { connectBus } from "../../runtime/bus.ts";
import { BusEnv, readEnv } from "../../runtime/env.ts";
import { silent } from "../../runtime/log.ts";
import { type Manifest, sizeOf } from "../backup/archive.ts";
import { takeBackup } from "../backup/backup.ts";
import { assertEmptyFolder, inNewFolder } from "../backup/embedded.ts";
import { checkedManifest, ownFile, restoreBackup, secretFor } from "../backup/restore.ts";
import { opens } from "../backup/secret.ts";
import { own, type Servers, serversIn, sourceOf } from "../backup/source.ts";
import { openForCopy } from "../backup/tables.ts";
import { example, type Operator } from "../operator.ts";

export function backupCommands(program: Command, { env, dataDir, print, say }: Operator): void {
  program.command("backup <folder>")
    .description("copy everything a running instance holds into a new folder; nothing has to stop for it")
    .option(
      "--without-secrets",
      "leave out the secret and the first keys that an embedded instance has made for itself",
    )
    .addHelpText("after", example("backup backups/monday", "backup backups/monday --without-secrets"))
    .action(async (name: string, { withoutSecrets }: { withoutSecrets?: true }) => {
      const folder = resolve(name);
      const source = await sourceOf(env, dataDir);
      const own = withoutSecrets ? new Map() : source.own;
      const sql = openForCopy(source.databaseUrl);
      try {
        if (!await opens(sql, source.serverSecret)) {
          throw new Error("The instance runs with another SERVER_SECRET than the one found here: set it");
        }
        await using bus = await connectBus(source.natsUrl, "backup", silent);
        const manifest = await takeBackup({ ...source, nc: bus.nc, sql, folder, own, say });
        print({ folder, ...summary(manifest) }, `${described(manifest)} are in ${folder}`);
        say(
          own.size > 0
            ? "The secret of the instance is in it: keep it as safe as the instance itself"
            : "The SERVER_SECRET of the instance is not in it, and nothing opens without: keep that as well",
        );
      } finally {
        await sql.end({ timeout: 5 });
      }
    });

  program.command("restore <folder>")
    .description("make an instance from a backup, in an empty DATA_DIR or in empty servers that nobody uses yet")
    .option("--check", "only look whether the backup is whole and can be read by this release")
    .addHelpText("after", example("restore backups/monday", "restore backups/monday --check"))
    .action(async (name: string, { check }: { check?: true }) => {
      const folder = resolve(name);
      const given = serversIn(env);
      const isApart = given.natsUrl !== undefined && given.databaseUrl !== undefined;
      if (!isApart && !check) await assertEmptyFolder(dataDir);
      const manifest = await checkedManifest(folder);
      if (check) return print({ folder, ...summary(manifest) }, `${described(manifest)} are whole in ${folder}`);
      const serverSecret = await secretFor(manifest, folder, env.SERVER_SECRET);
      const { NATS_REPLICAS: replicas } = readEnv(BusEnv.pick({ NATS_REPLICAS: true }), env);
      const fill = async (servers: Servers) => {
        await using bus = await connectBus({ NATS_URL: servers.natsUrl, NATS_REPLICAS: replicas }, "restore", silent);
        await restoreBackup({ ...servers, folder, manifest, nc: bus.nc, serverSecret, replicas, say });
      };
      if (isApart) await fill(given as Servers);
      else {
        const bootstrap = ownFile(manifest, folder, own.bootstrap);
        await inNewFolder({ dataDir, serverSecret, given, bootstrap, say }, fill);
      }
      print(
        { folder, ...summary(manifest) },
        `${described(manifest)} are in ${isApart ? "their servers" : dataDir}`,
      );
      // A broker learns the ids of the messages it has when it starts, and not when a restore gives it some.
      if (given.natsUrl) {
        say("Now restart nats-server, every node: only then does it know an event that comes once more");
      }
      say(`Now start ${isApart ? "the processes" : "it: npm start"}`);
    });
}

const summary = (manifest: Manifest) => ({
  release: manifest.release,
  began_at: manifest.began_at,
  ended_at: manifest.ended_at,
  tables: Object.fromEntries(manifest.tables.map(({ schema, name, rows }) => [`${schema}.${name}`, rows])),
  streams: Object.fromEntries(manifest.streams.map(({ name, state }) => [name, state.messages])),
  bytes: sizeOf(manifest),
});

function described(manifest: Manifest): string {
  const { tables, streams, began_at } = manifest;
  const rows = tables.reduce((sum, table) => sum + table.rows, 0);
  const messages = streams.reduce((sum, { state }) => sum + state.messages, 0);
  return `${rows} rows of ${tables.length} tables and ${messages} messages of ${streams.length} streams ` +
    `(${(sizeOf(manifest) / 1e6).toFixed(1)} MB, from ${began_at})`;
}
