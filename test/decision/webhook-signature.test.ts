/** Signatures as each sender documents them, and everything that is almost one. */
import { createHmac, createSecretKey } from "node:crypto";
import { describe, expect, test } from "vitest";
import type { Preset } from "../../contracts/ingestion.ts";
import { sign, TOLERANCE_SECONDS, verify } from "../../services/ingest/webhook-signature.ts";

const key = (secret: string) => createSecretKey(Buffer.from(secret));
const bytes = (text: string) => Buffer.from(text);
const hex = (secret: string, text: string) => createHmac("sha256", secret).update(text).digest("hex");

const check = (
  preset: Preset,
  secret: string,
  headers: Record<string, string>,
  body: string,
  nowSeconds = 1_000_000_000,
) => verify(preset, key(secret), { headers, body: bytes(body), nowSeconds });

describe("the examples in the senders' own documentation verify", () => {
  test("GitHub", () => {
    const headers = {
      "x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
    };
    expect(check("github", "It's a Secret to Everybody", headers, "Hello, World!")).toBe(true);
  });

  test("Slack", () => {
    const body = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V" +
      "&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=" +
      "&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN" +
      "&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    const headers = {
      "x-slack-request-timestamp": "1531420618",
      "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    };
    expect(check("slack", "8f742231b10e8888abcd99yyyzzz85a5", headers, body, 1_531_420_700)).toBe(true);
  });

  test("Stripe, with one of two signatures of a secret that is being changed", () => {
    const secret = "whsec_of_stripe_itself";
    const body = '{"id":"evt_1"}';
    const good = hex(secret, `1492774577.${body}`);
    const header = `t=1492774577,v1=${hex("the old one", `1492774577.${body}`)},v1=${good},v0=${"0".repeat(64)}`;
    expect(check("stripe", secret, { "stripe-signature": header }, body, 1_492_774_580)).toBe(true);
  });

  test("our own, with and without its prefix", () => {
    const signature = hex("whsec_x", "{}");
    for (const header of [signature, `sha256=${signature}`]) {
      expect(check("custom", "whsec_x", { "x-service-signature": header }, "{}")).toBe(true);
      expect(check("cloudevents", "whsec_x", { "x-service-signature": header }, "{}")).toBe(true);
    }
  });
});

describe("what is almost a signature is none", () => {
  const good = hex("secret", "body");
  test.each([
    ["of another body", hex("secret", "other"), false],
    ["of another secret", hex("other", "body"), false],
    ["in capitals", good.toUpperCase(), undefined],
    ["cut short", good.slice(0, 62), undefined],
    ["longer", `${good}00`, undefined],
    ["in base64", createHmac("sha256", "secret").update("body").digest("base64"), undefined],
    ["with another prefix", `sha1=${good}`, undefined],
    ["with two prefixes", `sha256=sha256=${good}`, undefined],
    ["empty", "", undefined],
    ["the prefix alone", "sha256=", undefined],
  ])("one %s", (_, signature, verdict) => {
    expect(check("custom", "secret", { "x-service-signature": signature }, "body")).toBe(verdict);
  });

  test("one of another sender's scheme, or none at all", () => {
    expect(check("custom", "secret", { "x-hub-signature-256": `sha256=${good}` }, "body")).toBeUndefined();
    expect(check("github", "secret", { "x-service-signature": good }, "body")).toBeUndefined();
    expect(check("github", "secret", { "x-hub-signature-256": good }, "body")).toBeUndefined();
    for (const preset of ["custom", "github", "stripe", "slack", "cloudevents"] as const) {
      expect(check(preset, "secret", {}, "body")).toBeUndefined();
    }
  });
});

describe("a signed moment", () => {
  const at = 1_000_000_000;
  const timed = ["stripe", "slack"] as const;
  test.each(timed)("%s: is good within the tolerance, either way, and no longer", (preset) => {
    const headers = sign(preset, key("secret"), bytes("body"), at);
    for (const away of [0, TOLERANCE_SECONDS, -TOLERANCE_SECONDS]) {
      expect(check(preset, "secret", headers, "body", at + away)).toBe(true);
    }
    for (const away of [TOLERANCE_SECONDS + 1, -TOLERANCE_SECONDS - 1, 86_400]) {
      expect(check(preset, "secret", headers, "body", at + away)).toBeUndefined();
    }
  });

  test.each(timed)("%s: cannot be replaced by a later one", (preset) => {
    const headers = sign(preset, key("secret"), bytes("body"), at);
    const later = Object.fromEntries(
      Object.entries(headers).map(([name, value]) => [name, value.replace(String(at), String(at + 1_000))]),
    );
    expect(check(preset, "secret", later, "body", at + 1_000)).toBe(false);
  });

  test("that is no number is no moment", () => {
    for (const t of ["", "-1", "1e9", "0x1", "NaN", " 1000000000"]) {
      const header = `t=${t},v1=${hex("secret", `${t}.body`)}`;
      expect(check("stripe", "secret", { "stripe-signature": header }, "body", at)).toBeUndefined();
    }
  });

  test("with a hundred signatures is somebody who makes us work", () => {
    const many = Array.from({ length: 100 }, () => `v1=${hex("secret", `${at}.body`)}`).join(",");
    expect(check("stripe", "secret", { "stripe-signature": `t=${at},${many}` }, "body", at)).toBeUndefined();
  });
});
