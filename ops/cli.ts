/** `npm run ops -- …`: the operator's commands at this terminal. */
import { createInterface } from "node:readline/promises";
import { text } from "node:stream/consumers";
import { runCommand } from "./program.ts";

process.exitCode = await runCommand(process.argv.slice(2), {
  env: process.env,
  print: (line) => console.log(line),
  complain: (line) => console.error(line),
  input: () => text(process.stdin),
  ...(process.stdin.isTTY
    ? {
      async question(asked) {
        const keyboard = createInterface({ input: process.stdin, output: process.stderr });
        try {
          return await keyboard.question(asked);
        } finally {
          keyboard.close();
        }
      },
    }
    : {}),
});
