/** What a first start prints: the keys, once, and lines to paste. */
import type { Bootstrap } from "./bootstrap.ts";

export const tour = (made: Bootstrap, dataDir: string): string => `
A first tenant is there to play with. Its keys are shown this once, and kept in ${dataDir}/bootstrap.json:

  tenant         ${made.tenant_slug} (${made.tenant_id})
  org-admin key  ${made.org_admin_key}
  agent          ${made.agent_id}
  agent key      ${made.agent_key}

Try it: exchange the key, care about something, publish it, take it.

  BASE=${made.base_url}
  TOKEN=$(curl -s $BASE/auth/token -H 'content-type: application/json' \\
    -d '{"api_key":"${made.agent_key}"}' | sed 's/.*"access_token":"\\([^"]*\\)".*/\\1/')
  curl -s $BASE/agents/${made.agent_id}/interests -H "authorization: Bearer $TOKEN" -H 'content-type: application/json' \\
    -d '{"event_type":"com.example.*","priority":0,"enrichment_depth":"none"}'; echo
  curl -s $BASE/events -H "authorization: Bearer $TOKEN" -H 'content-type: application/json' \\
    -d '{"specversion":"1.0","type":"com.example.greeting","source":"/tour","id":"greeting-1","data":"hello"}'; echo
  curl -s "$BASE/delivery/poll?wait=5" -H "authorization: Bearer $TOKEN"; echo
`;
