/** `npm test`: the checks, then every suite; ends with one line that counts. */
import { spawn } from "node:child_process";
import { readFile } from "node:fs/promises";

const steps: [string, string[]][] = [
  ["npm", ["run", "--silent", "check"]],
  ["vitest", ["run", ...process.argv.slice(2)]],
];

let failed = false;
for (const [command, args] of steps) {
  console.log(`\n> ${command} ${args.join(" ")}`);
  const code = await new Promise<number>((resolve) =>
    spawn(command, args, { stdio: "inherit" }).on("close", (status) => resolve(status ?? 1)).on(
      "error",
      () => resolve(127),
    )
  );
  if (code !== 0) failed = true;
}

const results = JSON.parse(await readFile(new URL("../.cache/test-results.json", import.meta.url), "utf8")) as {
  numPassedTests: number;
  numFailedTests: number;
  numPendingTests: number;
};
console.log(`${results.numPassedTests} passed, ${results.numFailedTests} failed, ${results.numPendingTests} skipped`);
process.exitCode = failed ? 1 : 0;
