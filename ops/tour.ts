/** What a first start prints: the keys, once, and lines to paste. */
import type { Bootstrap } from "./bootstrap.ts";

export const tour = (made: Bootstrap, dataDir: string): string => `
A first tenant is there to play with. Its keys are shown this once, and kept in ${dataDir}/bootstrap.json:

  tenant         ${made.tenant_slug} (${made.tenant_id})
  org-admin key  ${made.org_admin_key}
  agent          ${made.agent_id}
  agent key      ${made.agent_key}

Try it:

  TOKEN=$(curl -s ${made.base_url}/auth/token -H 'content-type: application/json' \\
    -d '{"api_key":"${made.agent_key}"}' | sed 's/.*"access_token":"\\([^"]*\\)".*/\\1/')
  curl -s ${made.base_url}/agents/${made.agent_id} -H "authorization: Bearer $TOKEN"
`;
