/** The log of an embedded instance: a file in DATA_DIR, and what is worth a look on the terminal too. */
import { createWriteStream } from "node:fs";
import { rename, stat } from "node:fs/promises";
import { join } from "node:path";
import { createLog, type Log, type LogLevel } from "../runtime/log.ts";

/** At the next start a longer file becomes `.1`; the one before that is forgotten. */
const ROTATE_BYTES = 50 * 1024 * 1024;

export async function openLogFile(dataDir: string, level: LogLevel): Promise<Log & AsyncDisposable> {
  const path = join(dataDir, "sensorium.log");
  const size = await stat(path).then((s) => s.size, () => 0);
  if (size > ROTATE_BYTES) await rename(path, `${path}.1`);
  const file = createWriteStream(path, { flags: "a", mode: 0o600 });
  const log = createLog({
    level,
    write(line, lineLevel) {
      file.write(line);
      if (lineLevel === "error") process.stderr.write(line);
    },
  });
  return { ...log, [Symbol.asyncDispose]: () => new Promise<void>((done) => file.end(() => done())) };
}
