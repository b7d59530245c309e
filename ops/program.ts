/** The operator's commands, one file for each noun. They speak to the services over the bus, with its own credentials. */
import { Command, CommanderError } from "commander";
import { Fault } from "../contracts/errors.ts";
import { version } from "../runtime/version.ts";
import { backupCommands } from "./commands/backup.ts";
import { connectorCommands } from "./commands/connector.ts";
import { dlqCommands } from "./commands/dlq.ts";
import { reindexCommands } from "./commands/reindex.ts";
import { tenantCommands } from "./commands/tenant.ts";
import { usageCommands } from "./commands/usage.ts";
import { webhookCommands } from "./commands/webhook.ts";
import { operator, type Terminal } from "./operator.ts";

const nouns = [
  tenantCommands,
  webhookCommands,
  connectorCommands,
  dlqCommands,
  reindexCommands,
  usageCommands,
  backupCommands,
];

/** Runs one command line. The exit code: 0 done, 1 refused or failed, 2 wrongly called. */
export async function runCommand(args: readonly string[], terminal: Terminal): Promise<0 | 1 | 2> {
  let failed = false;
  const program = new Command("npm run ops --")
    .description("Operate a Sensorium instance. Finds a running one by NATS_URL, or in DATA_DIR.")
    .version(await version())
    .option("--json", "print JSON for programs instead of tables for people")
    .addHelpText("after", "\nExit codes: 0 done, 1 refused or failed, 2 wrongly called.")
    .showHelpAfterError()
    .configureHelp({ showGlobalOptions: true })
    .configureOutput({
      writeOut: (text) => terminal.print(text.trimEnd()),
      writeErr: (text) => terminal.complain(text.trimEnd()),
    })
    .exitOverride();
  const isJson = () => program.opts<{ json?: boolean }>().json === true;
  const self = operator(terminal, isJson, () => failed = true);
  for (const add of nouns) add(program, self);
  try {
    await program.parseAsync(args, { from: "user" });
    return failed ? 1 : 0;
  } catch (error) {
    if (error instanceof CommanderError) {
      if (error.exitCode === 0) return 0;
      // Of its own complaints commander has told already.
      if (error.code === "commander.invalidArgument") terminal.complain(error.message);
      return 2;
    }
    terminal.complain(error instanceof Fault ? `${error.code}: ${error.message}` : (error as Error).message);
    return 1;
  }
}
