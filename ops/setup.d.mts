// Types of setup.mjs for the TypeScript that imports it.
export const projectDir: string;
export const WANTED_NATS: string;
export const OLDEST_NATS: string;

type Environment = Record<string, string | undefined>;

export interface NatsServer {
  path: string;
  version: string;
}

export interface AptSource {
  uris: string[];
  suites: string[];
  components: string[];
  signedBy: string | undefined;
}

export function setup(options?: { quiet?: boolean; env?: Environment }): Promise<void>;
export function cacheDir(env?: Environment): string;
export function findNatsServer(env?: Environment): Promise<NatsServer | undefined>;
export function parseDeb822(text: string): AptSource[];
export function parseOneLine(text: string): AptSource[];
export function isAtLeast(version: string, oldest: string): boolean;
