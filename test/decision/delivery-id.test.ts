import fc from "fast-check";
import { expect, test } from "vitest";
import { deriveKey } from "../../runtime/secret.ts";
import { deliveryIds, type Handle } from "../../services/delivery/delivery-id.ts";

const ids = deliveryIds(deriveKey("a secret of at least thirty-two characters", "delivery ids"));
const owner = { tenant: "ten_1", agent: "agt_1" };
const whole = (max: number) => fc.integer({ min: 0, max });
const handles: fc.Arbitrary<Handle> = fc.record({
  seq: whole(Number.MAX_SAFE_INTEGER),
  at: whole(2 ** 47),
  tier: whole(2 ** 31),
  event: whole(Number.MAX_SAFE_INTEGER),
});

test("an id gives back what it was made from, to its owner alone", () => {
  fc.assert(fc.property(handles, (handle) => {
    const id = ids.idOf(owner, handle);
    expect(id).toMatch(/^dlv_[0-9a-z]{1,92}$/);
    expect(ids.handleOf(owner, id)).toEqual(handle);
    expect(ids.handleOf({ ...owner, agent: "agt_2" }, id)).toBeUndefined();
    expect(ids.handleOf({ ...owner, tenant: "ten_2" }, id)).toBeUndefined();
  }));
});

test("ids sort by the moment of their deliveries", () => {
  fc.assert(fc.property(handles, handles, (a, b) => {
    fc.pre(a.at !== b.at);
    expect(ids.idOf(owner, a) < ids.idOf(owner, b)).toBe(a.at < b.at);
  }));
});

test("an id with any letter changed, added or taken away is nobody's", () => {
  const letters = "0123456789abcdefghjkmnpqrstvwxyz!A~".split("");
  fc.assert(fc.property(handles, whole(200), fc.constantFrom(...letters), (handle, at, letter) => {
    const id = ids.idOf(owner, handle);
    const place = 4 + at % (id.length - 4);
    const others = [
      id.slice(0, place) + letter + id.slice(place + 1),
      id.slice(0, place) + letter + id.slice(place),
      id.slice(0, place) + id.slice(place + 1),
    ].filter((other) => other !== id);
    for (const other of others) expect(ids.handleOf(owner, other)).toBeUndefined();
  }));
});

test("what was never an id is nobody's", () => {
  fc.assert(fc.property(fc.string(), (text) => {
    expect(ids.handleOf(owner, text)).toBeUndefined();
    expect(ids.handleOf(owner, `dlv_${text}`)).toBeUndefined();
  }));
});
