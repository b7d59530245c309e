/** Restoring into a folder that `npm start` can be started in. */
import { copyFile, mkdir, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { startNats } from "../embedded/nats.ts";
import { startPostgres } from "../embedded/postgres.ts";
import { secretsIn } from "../embedded/secrets.ts";
import { own, type Servers } from "./source.ts";

/** Until it is whole; a start beside it takes no notice, and the next restore begins anew. */
const WORKSHOP = "restoring";
/** In this order: without its secrets, which come last, a start refuses the database. */
const PARTS = ["postgres", "nats", own.bootstrap, "secrets.json"];

/** Throws unless nothing is in the folder. */
export async function assertEmptyFolder(dataDir: string): Promise<void> {
  const found = (await readdir(dataDir).catch(() => [])).filter((name) => name !== WORKSHOP);
  if (found.length > 0) {
    throw new Error(`${dataDir} is not empty: move it away, or set DATA_DIR to a new folder to restore into`);
  }
}

/** Starts servers of its own for those that are not given, lets `work` fill them, and leaves what they hold in DATA_DIR. */
export async function inNewFolder(
  { dataDir, serverSecret, given, bootstrap, say }: {
    readonly dataDir: string;
    readonly serverSecret: string;
    readonly given: Partial<Servers>;
    /** The file to bring along, where there is one. */
    readonly bootstrap: string | undefined;
    readonly say: (line: string) => void;
  },
  work: (servers: Servers) => Promise<void>,
): Promise<void> {
  await assertEmptyFolder(dataDir);
  const workshop = join(dataDir, WORKSHOP);
  await rm(workshop, { recursive: true, force: true });
  await mkdir(workshop, { recursive: true, mode: 0o711 });
  try {
    await secretsIn(workshop, serverSecret);
    if (bootstrap) await copyFile(bootstrap, join(workshop, own.bootstrap));
    {
      await using stack = new AsyncDisposableStack();
      const start = { dataDir: workshop, log: say };
      const natsUrl = given.natsUrl ?? stack.use(await startNats(start)).url;
      const databaseUrl = given.databaseUrl ?? stack.use(await startPostgres(start)).url;
      await work({ natsUrl, databaseUrl });
    }
    const there = await readdir(workshop);
    for (const part of PARTS.filter((name) => there.includes(name))) {
      await rename(join(workshop, part), join(dataDir, part));
    }
  } finally {
    await rm(workshop, { recursive: true, force: true });
  }
}
