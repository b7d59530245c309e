// A process that starts both servers in the folder it is given, tells their pids and waits to be killed.
import process from "node:process";
import { startNats } from "../../ops/embedded/nats.ts";
import { startPostgres } from "../../ops/embedded/postgres.ts";

const dataDir = process.argv[2] as string;
process.on("SIGINT", () => process.stdout.write("SIGINT\n"));
const servers = await Promise.all([startNats({ dataDir }), startPostgres({ dataDir })]);
process.stdout.write(`${JSON.stringify(servers.map(({ pid }) => pid))}\n`);
