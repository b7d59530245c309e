/** The life of a service started on its own: its log, its telemetry, its wiring, and the word that it is ready. */
import { LogEnv, readEnv } from "./env.ts";
import { type App, run } from "./lifecycle.ts";
import { createLog, type Log } from "./log.ts";
import { startTelemetry, TelemetryEnv } from "./telemetry.ts";

export function runService(name: string, start: (app: App, log: Log) => Promise<void>): Promise<void> {
  return run(async (app) => {
    const log = createLog({ level: readEnv(LogEnv).LOG_LEVEL, fields: { service: name } });
    app.use(await startTelemetry(name, readEnv(TelemetryEnv)));
    await start(app, log);
    log.info(`${name}.ready`);
  });
}
