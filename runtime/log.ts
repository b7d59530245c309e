/** One JSON line per piece of work, written when it ends. */

export type LogLevel = "debug" | "info" | "warn" | "error";
export type Fields = Record<string, unknown>;

export interface Log {
  debug(event: string, fields?: Fields): void;
  info(event: string, fields?: Fields): void;
  warn(event: string, fields?: Fields): void;
  error(event: string, fields?: Fields): void;
  /** A log whose every line carries these fields too. */
  with(fields: Fields): Log;
}

const weights: Record<LogLevel, number> = { debug: 10, info: 20, warn: 30, error: 40 };

export function createLog(options: {
  level?: LogLevel;
  fields?: Fields;
  write?: (line: string, level: LogLevel) => void;
} = {}): Log {
  const { level = "info", fields = {}, write = (line) => process.stdout.write(line) } = options;
  const at = (lineLevel: LogLevel) => (event: string, more: Fields = {}) => {
    if (weights[lineLevel] < weights[level]) return;
    const line = { time: new Date().toISOString(), level: lineLevel, event, ...fields, ...more };
    write(JSON.stringify(line, (_, value) => value instanceof Error ? describe(value) : value) + "\n", lineLevel);
  };
  return {
    debug: at("debug"),
    info: at("info"),
    warn: at("warn"),
    error: at("error"),
    with: (more) => createLog({ level, fields: { ...fields, ...more }, write }),
  };
}

/** An error with what caused it, down to the first. */
function describe(error: Error): Fields {
  const { name, message, stack, cause } = error;
  return {
    name,
    message,
    stack: stack?.split("\n").slice(1, 6).map((line) => line.trim()),
    ...(cause ? { cause } : {}),
  };
}

export const silent: Log = createLog({ write: () => {} });
