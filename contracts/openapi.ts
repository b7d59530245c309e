/** The table as an OpenAPI 3.1 document. */
import { z } from "zod";
import { catalogue, ErrorEnvelope } from "./errors.ts";
import { faultsOf, isKeyed, type Operation } from "./operation.ts";
import { operationNames, operationOf } from "./operations.ts";

const BASE = "/v1";
type Json = Record<string, unknown>;

export function openapi(version: string): Json {
  const paths: Record<string, Json> = {};
  for (const name of operationNames) {
    const operation = operationOf(name);
    if (!operation.http) continue;
    const [method, path] = operation.http;
    paths[path] = { ...paths[path], [method.toLowerCase()]: describe(name, operation) };
  }
  return {
    openapi: "3.1.0",
    info: {
      title: "Sensorium",
      version,
      description: "Messaging and memory for autonomous agents",
      license: { name: "Apache-2.0", identifier: "Apache-2.0" },
    },
    servers: [{ url: BASE }],
    security: [{ bearer: [] }],
    paths,
    components: { securitySchemes: { bearer: { type: "http", scheme: "bearer", bearerFormat: "JWT" } } },
  };
}

function describe(name: string, operation: Operation): Json {
  const { summary, service, access, path, query, body, success } = operation;
  return {
    operationId: name,
    summary,
    tags: [name.split(".")[0], service],
    ...(access === "public" ? { security: [] } : { "x-access": access }),
    parameters: [
      ...parameters(path, "path"),
      ...parameters(query, "query"),
      ...(isKeyed(operation)
        ? [{ name: "Idempotency-Key", in: "header", required: false, schema: { type: "string", maxLength: 255 } }]
        : []),
      ...(operation.stream ? [lastEventId] : []),
    ],
    ...(body ? { requestBody: { required: true, content: json(body, "input") } } : {}),
    responses: {
      [success]: { description: summary, ...contentOf(operation) },
      ...faultResponses(operation),
    },
  };
}

const lastEventId = {
  name: "Last-Event-ID",
  in: "header",
  required: false,
  description: "The id of the last event that came: what was written after it and not acknowledged comes first",
  schema: { type: "string" },
};

const contentOf = ({ output, stream }: Operation): Json =>
  stream
    ? { content: { "text/event-stream": { schema: { type: "string" } } } }
    : output
    ? { content: json(output, "output") }
    : {};

const parameters = (schema: z.ZodObject | undefined, place: "path" | "query") =>
  Object.entries(schema?.shape ?? {}).map(([name, field]) => ({
    name,
    in: place,
    required: place === "path" || !(field as z.ZodType).safeParse(undefined).success,
    schema: schemaOf(field as z.ZodType, "input"),
  }));

function faultResponses(operation: Operation): Json {
  const byStatus = Map.groupBy(faultsOf(operation), (code) => catalogue[code].status);
  return Object.fromEntries(
    [...byStatus].sort(([a], [b]) => a - b).map(([status, codes]) => [status, {
      description: codes.join(", "),
      content: json(ErrorEnvelope, "output"),
    }]),
  );
}

const json = (schema: z.ZodType, io: "input" | "output") => ({ "application/json": { schema: schemaOf(schema, io) } });

function schemaOf(schema: z.ZodType, io: "input" | "output"): Json {
  const { $schema: _, id: __, ...rest } = z.toJSONSchema(schema, {
    io,
    unrepresentable: "any",
    target: "draft-2020-12",
  }) as Json;
  return rest;
}
