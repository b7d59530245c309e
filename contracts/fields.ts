/** Field shapes that several resources share. */
import { z } from "zod";

/** A moment: any ISO 8601 date-time with a zone comes in, UTC with milliseconds goes out. */
export const Moment = z.iso.datetime({ offset: true })
  .meta({ expected: "an ISO 8601 date-time with a time zone", examples: ["2099-12-31T23:59:59.000Z"] });

export const Name = z.string().min(1).max(200).meta({ examples: ["billing-watcher"] });
export const Description = z.string().max(4000).nullable().meta({ examples: ["Watches invoices"] });
export const TeamId = z.string().min(1).max(128).regex(/^[\x21-\x7e]+$/, "printable characters without spaces")
  .meta({ examples: ["team-research"] });

/** Only what a server can be reached by: `javascript:` is a URI too. */
export const HttpUrl = z.url({ protocol: /^https?$/ }).max(2048)
  .meta({ expected: "an absolute http or https URI", examples: ["https://agent.example.com/inbox"] });

/** Shell-style: `*` any run of characters, `?` one, `[abc]` a set. */
export const TypeGlob = z.string().min(1).max(256)
  .regex(/^(?:[^[\]]|\[[^[\]]+\])+$/, "a shell-style glob with every [set] closed and not empty")
  .meta({ examples: ["com.example.order.*"] });

/** CEL over the event; compiled where it is stored, because only there its position can be told. */
export const FilterExpression = z.string().min(1).max(2048).nullable()
  .meta({ examples: ["data.total > 100"] });

const queryInteger = (min: number, max: number, standard: number) =>
  z.union([z.number(), z.string().regex(/^-?\d{1,9}$/, "a whole number").transform(Number)])
    .pipe(z.number().int().min(min).max(max)).default(standard)
    .meta({ expected: `a whole number from ${min} to ${max}`, examples: [standard] });

export const Page = z.object({
  offset: queryInteger(0, 1_000_000, 0),
  limit: queryInteger(1, 200, 50),
});
