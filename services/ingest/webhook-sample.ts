/** A message as a sender would send it, to try a webhook with. Pure. */
import { type Mapping, type Part, placesIn, type Preset } from "../../contracts/ingestion.ts";
import type { Headers } from "./webhook-signature.ts";

export interface Sample {
  readonly headers: Headers;
  readonly body: string;
}

/** `seed` makes its id one that was never there before. */
export function sampleOf(preset: Preset, mapping: Mapping | null, seed: string, now: Date): Sample {
  const seconds = Math.floor(now.getTime() / 1_000);
  switch (preset) {
    case "custom":
      return fitting(mapping!, {
        entity: "sample",
        action: "tested",
        entity_id: "1",
        id: `sample-${seed}`,
        subject: "sample/1",
        time: now.toISOString(),
      });
    case "github":
      return json({ zen: "Speak like a human.", hook_id: 1, repository: { full_name: "octocat/hello" } }, {
        "x-github-event": "ping",
        "x-github-delivery": `sample-${seed}`,
      });
    case "stripe":
      return json({
        id: `evt_sample_${seed}`,
        object: "event",
        type: "invoice.paid",
        created: seconds,
        data: { object: { id: "in_sample", object: "invoice" } },
      });
    case "slack":
      return json({
        type: "event_callback",
        event_id: `Ev-sample-${seed}`,
        event_time: seconds,
        event: { type: "message", channel: "C0SAMPLE", user: "U0SAMPLE", text: "a sample", ts: `${seconds}.000100` },
      });
    case "cloudevents":
      return json({
        specversion: "1.0",
        id: `sample-${seed}`,
        type: "com.example.sample.tested",
        source: "sample",
        time: now.toISOString(),
        data: { sample: true },
      }, { "content-type": "application/cloudevents+json" });
  }
}

const json = (body: unknown, headers: Headers = {}): Sample => ({
  headers: { "content-type": "application/json", ...headers },
  body: JSON.stringify(body),
});

/** Puts a value at every place that the mapping reads. */
function fitting(mapping: Mapping, values: Record<Exclude<keyof Mapping, "data">, string>): Sample {
  const headers: Record<string, string> = {};
  let body: unknown = {};
  const put = (part: Part, value: string) => {
    if (part.kind === "header") headers[part.name] = value;
    if (part.kind === "pointer") body = placed(body, part.path, value);
  };
  if (mapping.data) put(placesIn(mapping.data)![0]!, "a sample");
  for (const [field, value] of Object.entries(values)) {
    const parts = placesIn(mapping[field as keyof Mapping] ?? "x")!;
    for (const part of parts) put(part, value);
  }
  return json(body, headers);
}

function placed(into: unknown, [key, ...rest]: readonly string[], value: string): unknown {
  if (key === undefined) return value;
  if (/^\d{1,2}$/.test(key) && (Array.isArray(into) || !isFilled(into))) {
    const list = Array.isArray(into) ? [...into] : [];
    while (list.length < Number(key)) list.push(null);
    list[Number(key)] = placed(list[Number(key)], rest, value);
    return list;
  }
  const object = typeof into === "object" && into !== null ? into as Record<string, unknown> : {};
  return { ...object, [key]: placed(object[key], rest, value) };
}

const isFilled = (value: unknown) => typeof value === "object" && value !== null && Object.keys(value).length > 0;
