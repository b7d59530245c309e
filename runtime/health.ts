/** Whether a process can do its work: named checks, each with a second to answer. */

export type Checks = Record<string, () => Promise<unknown>>;
export interface HealthReport {
  readonly ok: boolean;
  readonly checks: Record<string, "ok" | string>;
}

const CHECK_MS = 1_000;

export async function checkAll(checks: Checks): Promise<HealthReport> {
  const results = await Promise.all(
    Object.entries(checks).map(async ([name, check]) => [name, await verdict(check)] as const),
  );
  return { ok: results.every(([, result]) => result === "ok"), checks: Object.fromEntries(results) };
}

async function verdict(check: () => Promise<unknown>): Promise<string> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  try {
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error("no answer within a second")), CHECK_MS);
    });
    await Promise.race([check(), late]);
    return "ok";
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  } finally {
    clearTimeout(timer);
  }
}
