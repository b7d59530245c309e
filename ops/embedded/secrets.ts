// The random secrets of an embedded instance, made once for each data folder.
import { randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { link, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

export interface Login {
  user: string;
  password: string;
}

export interface Secrets {
  nats: Login;
  postgres: Login;
  /** What every hash and seal in the data is keyed with. */
  server: string;
}

/**
 * Reads DATA_DIR/secrets.json, or makes it. All are made together, so that no start finds half of them; `server` is given
 * where data comes along that is keyed with it already.
 */
export async function secretsIn(dataDir: string, server = randomBytes(32).toString("hex")): Promise<Secrets> {
  const file = join(dataDir, "secrets.json");
  const draft = `${file}.${randomBytes(8).toString("hex")}`;
  try {
    return parse(await readFile(file, "utf8"), file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
  if (existsSync(join(dataDir, "postgres"))) {
    throw new Error(`${file} is missing, and the database beside it opens with nothing else: restore it from a backup`);
  }
  const fresh: Secrets = { nats: newLogin(), postgres: newLogin(), server };
  try {
    await writeFile(draft, JSON.stringify(fresh, null, 2) + "\n", { mode: 0o600, flush: true });
    // Unlike a rename, a link never replaces what a start beside us has just made.
    await link(draft, file);
    return fresh;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    return parse(await readFile(file, "utf8"), file);
  } finally {
    await rm(draft, { force: true });
  }
}

// Hexadecimal, so that it needs no escaping in a URL or a configuration file.
function newLogin(): Login {
  return { user: "sensorium", password: randomBytes(24).toString("hex") };
}

function parse(text: string, file: string): Secrets {
  try {
    const { nats, postgres, server } = JSON.parse(text);
    if (isLogin(nats) && isLogin(postgres) && typeof server === "string") return { nats, postgres, server };
  } catch {
    // Not JSON; said below.
  }
  throw new Error(`${file} is damaged, and the data beside it opens with nothing else: restore it from a backup`);
}

function isLogin(value: unknown): value is Login {
  const { user, password } = (value ?? {}) as Partial<Login>;
  return typeof user === "string" && /^[0-9a-f]{16,}$/.test(String(password));
}
