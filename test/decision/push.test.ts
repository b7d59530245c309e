import { describe, expect, test } from "vitest";
import { isAllowedHost, isPublic } from "../../services/delivery/address.ts";
import { readRetryAfter } from "../../services/delivery/endpoint.ts";
import { delayAfter } from "../../services/delivery/push.ts";

describe("only public addresses are pushed to", () => {
  const refused = [
    "127.0.0.1",
    "127.9.9.9",
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:8.8.8.8",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "2001:db8::1",
    "2001::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "ff02::1",
    "not an address",
  ];
  test.each(refused)("%s is refused", (address) => expect(isPublic(address)).toBe(false));
  test.each(["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450:4001::200e"])(
    "%s is allowed",
    (address) => expect(isPublic(address)).toBe(true),
  );
  test("an address in a URL is looked at, a name is left to the lookup", () => {
    expect(isAllowedHost(new URL("http://[::1]:80/").hostname)).toBe(false);
    expect(isAllowedHost(new URL("http://0x7f000001/").hostname)).toBe(false);
    expect(isAllowedHost(new URL("http://2130706433/").hostname)).toBe(false);
    expect(isAllowedHost(new URL("http://127.1/").hostname)).toBe(false);
    expect(isAllowedHost(new URL("https://agent.example.com/").hostname)).toBe(true);
  });
});

test("Retry-After is read as seconds or as a date, and no longer than an hour", () => {
  const now = Date.parse("2026-01-31T12:00:00Z");
  expect(readRetryAfter("120", now)).toBe(120_000);
  expect(readRetryAfter("Sat, 31 Jan 2026 12:01:00 GMT", now)).toBe(60_000);
  expect(readRetryAfter("Sat, 31 Jan 2026 11:00:00 GMT", now)).toBe(0);
  expect(readRetryAfter("86400", now)).toBe(3_600_000);
  expect(readRetryAfter("soon", now)).toBeUndefined();
});

test("delays double from the first, stray by a quarter and end at an hour", () => {
  expect([1, 2, 3].map((attempt) => delayAfter(attempt, 1_000, 0.5))).toEqual([1_000, 2_000, 4_000]);
  expect([0, 1].map((random) => delayAfter(1, 1_000, random))).toEqual([750, 1_250]);
  expect(delayAfter(60, 1_000, 0.5)).toBe(3_600_000);
});
