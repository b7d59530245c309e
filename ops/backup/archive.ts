/** The folder of a backup: files with their checksums, and a manifest written last, which makes it one. */
import { createHash } from "node:crypto";
import { createReadStream, createWriteStream } from "node:fs";
import { mkdir, readdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { type Duplex, PassThrough } from "node:stream";
import { pipeline } from "node:stream/promises";
import { z } from "zod";
import { isAtLeast } from "../setup.mjs";

/** Grows when a restore of before could not read what is written now. */
const FORMAT = 1;
const MANIFEST = "manifest.json";

const File = z.object({ file: z.string(), bytes: z.int(), sha256: z.string() });
export type File = z.output<typeof File>;

const Table = z.object({
  schema: z.string(),
  name: z.string(),
  columns: z.array(z.string()),
  rows: z.int(),
  data: File,
});
export type Table = z.output<typeof Table>;

const Snapshot = z.object({
  name: z.string(),
  /** The broker's own words on the stream, handed back to it as they came. */
  config: z.looseObject({ name: z.string(), subjects: z.array(z.string()).optional(), num_replicas: z.int() }),
  state: z.looseObject({ messages: z.int(), last_seq: z.int(), consumer_count: z.int() }),
  /** The last number the stream had given out when the backup ended; none up to it is given out again. */
  used: z.int(),
  data: File,
});
export type Snapshot = z.output<typeof Snapshot>;

const Migration = z.object({ schema: z.string(), file: z.string(), checksum: z.string() });
export type Migration = z.output<typeof Migration>;

export const Manifest = z.object({
  format: z.int(),
  release: z.string(),
  nats: z.string(),
  /** By the clock of Postgres. */
  began_at: z.string(),
  ended_at: z.string(),
  /** Says which server secret opens it, and nothing else about that. */
  secret: z.string(),
  migrations: z.array(Migration),
  /** In an order in which they can be filled: what is referred to comes first. */
  tables: z.array(Table),
  sequences: z.array(z.object({ schema: z.string(), name: z.string(), last_value: z.string() })),
  /** In the order in which they were copied. */
  streams: z.array(Snapshot),
  /** What an embedded instance had made for itself, and needs again. */
  own: z.array(File),
});
export type Manifest = z.output<typeof Manifest>;

/** A new folder, or one in which nothing is; closed to others, for it holds what the instance holds. */
export async function newFolder(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  if ((await readdir(folder)).length > 0) throw new Error(`${folder} is not empty: name a new folder for the backup`);
}

/** Empties a folder whose backup came to nothing. */
export async function discard(folder: string): Promise<void> {
  for (const name of await readdir(folder)) await rm(join(folder, name), { recursive: true, force: true });
}

/** Writes a file of the backup as it comes, `through` what changes it first; nothing is held in memory. */
export async function store(
  folder: string,
  file: string,
  content: AsyncIterable<Uint8Array>,
  through: Duplex = new PassThrough(),
): Promise<File> {
  const hash = createHash("sha256");
  let bytes = 0;
  await mkdir(dirname(join(folder, file)), { recursive: true, mode: 0o700 });
  const measured = async function* (chunks: AsyncIterable<Uint8Array>) {
    for await (const chunk of chunks) {
      hash.update(chunk);
      bytes += chunk.length;
      yield chunk;
    }
  };
  const written = createWriteStream(join(folder, file), { mode: 0o600, flush: true });
  await pipeline(content, through, measured, written);
  return { file, bytes, sha256: hash.digest("hex") };
}

export async function writeManifest(folder: string, content: Omit<Manifest, "format">): Promise<Manifest> {
  const manifest: Manifest = { format: FORMAT, ...content };
  const checksum = checksumOf(manifest);
  const draft = join(folder, `${MANIFEST}.new`);
  await writeFile(draft, JSON.stringify({ ...manifest, checksum }, null, 2) + "\n", { mode: 0o600, flush: true });
  await rename(draft, join(folder, MANIFEST));
  return manifest;
}

/** Reads what a backup says of itself, or says why it cannot be restored here. */
export async function readManifest(folder: string, here: { release: string }): Promise<Manifest> {
  const text = await readFile(join(folder, MANIFEST), "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "ENOENT") throw error;
    throw new Error(`${folder} has no ${MANIFEST}: it is no backup, or one that was not finished`);
  });
  const { checksum, ...written } = asJson(text, folder);
  if (typeof written.format === "number" && written.format > FORMAT) {
    throw new Error(
      `This backup has format ${written.format}, and release ${here.release} reads up to ${FORMAT}: take a newer release`,
    );
  }
  const manifest = Manifest.safeParse(written);
  if (!manifest.success || checksum !== checksumOf(written)) throw damaged(folder, MANIFEST);
  if (!isAtLeast(here.release, manifest.data.release)) {
    throw new Error(
      `This backup was made by release ${manifest.data.release}, and this is ${here.release}: take that one, or a newer`,
    );
  }
  return manifest.data;
}

/** Reads every file once, so that nothing is touched for the sake of a backup that is not whole. */
export async function verifyFiles(folder: string, { tables, streams, own }: Manifest): Promise<void> {
  for (const { file, bytes, sha256 } of [...tables, ...streams].map(({ data }) => data).concat(own)) {
    const found = await stat(join(folder, file)).catch(() => undefined);
    if (found?.size !== bytes) throw damaged(folder, file);
    const hash = createHash("sha256");
    for await (const chunk of createReadStream(join(folder, file))) hash.update(chunk as Uint8Array);
    if (hash.digest("hex") !== sha256) throw damaged(folder, file);
  }
}

export const sizeOf = ({ tables, streams, own }: Manifest): number =>
  [...tables, ...streams].map(({ data }) => data).concat(own).reduce((sum, { bytes }) => sum + bytes, 0);

const checksumOf = (content: object): string => createHash("sha256").update(JSON.stringify(content)).digest("hex");

const damaged = (folder: string, file: string) =>
  new Error(`This backup is damaged: ${join(folder, file)} is not what was written. Nothing was restored`);

function asJson(text: string, folder: string): Record<string, unknown> {
  try {
    return JSON.parse(text) as Record<string, unknown>;
  } catch {
    throw damaged(folder, MANIFEST);
  }
}
