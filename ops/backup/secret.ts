/** Which server secret a backup opens with: most of what is stored is keyed with it, and nothing says so when it is wrong. */
import type { Sql } from "../../runtime/database.ts";
import { deriveKey, unseal } from "../../runtime/secret.ts";
import { sealingKeyOf } from "../../services/registry/tokens.ts";

/** Names the secret without telling anything of it. */
export const fingerprint = (serverSecret: string): string =>
  deriveKey(serverSecret, "backup").export().toString("hex").slice(0, 16);

/** Whether the secret is the one that the instance runs with, as far as it has sealed anything yet. */
export async function opens(sql: Sql, serverSecret: string): Promise<boolean> {
  const [key] = await sql<{ private_sealed: Uint8Array }[]>`select private_sealed from registry.signing_keys limit 1`;
  try {
    if (key) unseal(sealingKeyOf(serverSecret), key.private_sealed);
    return true;
  } catch {
    return false;
  }
}
