/**
 * What a user may expect of the queues, as a value. Time is real and machines are slow, so the model never says what is
 * the case but what may be: every delivery has a set of fates it can have met by now. An answer that fits one of them
 * narrows the set; an answer that fits none is a divergence. No fate has an end that must come by a certain time, only
 * a moment before which it cannot come.
 *
 * That a walk can fail was tried by breaking the service in these ways, one at a time; each was found within a dozen
 * walks: an acknowledgement counted by every racer; one that leaves the message in its stream; attempts that do not
 * increase; one attempt too many; a replay under a new id; extend and delay ignored; dead letters not kept; the reason
 * of a rejection lost; another agent's delivery id accepted; an inactive agent that goes on receiving; priorities in any
 * order. What is rarer takes a longer run: a waiting poll that gives back what it took too much of was found twice in
 * 144 walks.
 */
export const VISIBILITY_MS = 1_000;
export const MAX_ATTEMPTS = 3;
/** The broker's clock, ours and the rounding to milliseconds in between. */
const EARLY_MS = 50;

export type Fate =
  /** Never to be seen: its agent was inactive. */
  | { readonly is: "absent" }
  /** Handed out so many times; cannot come again, or die, before that moment. */
  | { readonly is: "pending"; readonly attempts: number; readonly notBefore: number }
  | { readonly is: "acknowledged"; readonly attempts: number; readonly during: Span }
  | { readonly is: "dead"; readonly attempts: number; readonly reason?: string };

export interface Published {
  readonly id: string;
  readonly type: string;
  readonly data: { readonly n: number };
}

export interface Item {
  readonly agent: number;
  readonly event: Published;
  readonly interestId: string;
  readonly priority: number;
  /** Known once it has been handed out. */
  id?: string;
  fates: readonly Fate[];
}

/** From just before a request was sent until just after its answer came. */
export interface Span {
  readonly from: number;
  readonly to: number;
}

export interface Listener {
  readonly interestId: string;
  readonly priority: number;
  matches(event: Published): boolean;
}

export interface SeenDelivery {
  readonly id: string;
  readonly event_id: string;
  readonly attempt_count: number;
  readonly payload: { type: string; id: string; data?: unknown; matched: unknown };
}

export interface SeenDeadLetter {
  readonly delivery_id: string;
  readonly event_id: string;
  readonly attempt_count: number;
  readonly dlq_reason: string;
  readonly payload: { id: string } | null;
}

export class Divergence extends Error {}

export class QueueModel {
  readonly items: Item[] = [];
  readonly published = new Map<string, Published>();
  readonly inactive = new Set<number>();
  /** What happened, for whoever reads a divergence. */
  readonly trace: string[] = [];
  readonly listeners: readonly (readonly Listener[])[];

  constructor(listeners: readonly (readonly Listener[])[]) {
    this.listeners = listeners;
  }

  of(agent: number): Item[] {
    return this.items.filter((item) => item.agent === agent);
  }

  /** Items an agent can name, the ones handed out last first. */
  known(agent: number): Item[] {
    return this.of(agent).filter((item) => item.id !== undefined).sort((a, b) => lastMoment(b) - lastMoment(a));
  }

  /** Something must come to the agent by itself if it waits. */
  mustCome(agent: number): boolean {
    return this.of(agent).some(({ fates }) =>
      fates.every((fate) => fate.is === "pending" && fate.attempts < MAX_ATTEMPTS)
    );
  }

  isSettled(): boolean {
    return this.items.every(({ fates }) => fates.every(({ is }) => is !== "pending"));
  }

  accepted(event: Published, status: string): void {
    const expected = this.published.has(event.id) ? "duplicate" : "accepted";
    if (status !== expected) this.diverge(`${event.id} was answered ${status}, not ${expected}`);
    if (this.published.has(event.id)) return;
    this.published.set(event.id, event);
    for (const [agent, listeners] of this.listeners.entries()) {
      const match = listeners.find((listener) => listener.matches(event));
      if (!match) continue;
      const fate: Fate = this.inactive.has(agent)
        ? { is: "absent" }
        : { is: "pending", attempts: 0, notBefore: -Infinity };
      this.items.push({ agent, event, interestId: match.interestId, priority: match.priority, fates: [fate] });
    }
  }

  polled(agent: number, span: Span, limit: number, deliveries: readonly SeenDelivery[]): void {
    if (deliveries.length > limit) this.diverge(`${deliveries.length} deliveries for a limit of ${limit}`);
    let last = Infinity;
    for (const delivery of deliveries) {
      const item = this.find(agent, delivery.event_id);
      this.named(item, delivery.id);
      const { payload } = delivery;
      if (
        payload.id !== item.event.id || payload.type !== item.event.type ||
        JSON.stringify(payload.data) !== JSON.stringify(item.event.data)
      ) this.diverge(`${item.event.id} came with the payload ${JSON.stringify(payload)}`);
      if (JSON.stringify(payload.matched) !== JSON.stringify([{ interest_id: item.interestId }])) {
        this.diverge(`${item.event.id} came as matched by ${JSON.stringify(payload.matched)}`);
      }
      if (item.priority > last) this.diverge(`${item.event.id} of priority ${item.priority} came after lower ones`);
      last = item.priority;
      const attempt = delivery.attempt_count;
      const isPossible = item.fates.some((fate) =>
        fate.is === "pending" && fate.attempts + 1 === attempt && fate.notBefore <= span.to && attempt <= MAX_ATTEMPTS
      );
      if (!isPossible) this.impossible(item, span, `came as attempt ${attempt}`);
      item.fates = [{ is: "pending", attempts: attempt, notBefore: span.from + VISIBILITY_MS - EARLY_MS }];
    }
  }

  acknowledged(agent: number, span: Span, ids: readonly string[], count: number): void {
    this.counted(agent, span, ids, count, "acknowledged", (fate) => {
      if (fate.is !== "pending") return { uncounted: [fate] };
      // After a replay it can be ended before it is handed out again; that counts as the first attempt.
      return { counted: [{ is: "acknowledged", attempts: Math.max(1, fate.attempts), during: span }] };
    });
  }

  /** Released with a delay, or extended: they come again, or die after their last attempt, so much later. */
  held(agent: number, span: Span, ids: readonly string[], count: number, ms: number): void {
    this.counted(agent, span, ids, count, "held", (fate) => {
      if (fate.is !== "pending") return { uncounted: [fate] };
      // One whose time was up may be on its way already; then nothing holds it back.
      const isLate = fate.notBefore <= span.to;
      const notBefore = ms === 0 || isLate ? -Infinity : span.from + ms - EARLY_MS;
      return { counted: [{ ...fate, notBefore }] };
    });
  }

  rejected(agent: number, span: Span, ids: readonly string[], count: number, reason: string): void {
    this.counted(agent, span, ids, count, "rejected", (fate) => {
      if (fate.is !== "pending") return { uncounted: [fate] };
      return { counted: [{ is: "dead", attempts: Math.max(1, fate.attempts), reason }] };
    });
  }

  deadLetters(agent: number, span: Span, letters: readonly SeenDeadLetter[], total: number): void {
    // The list and the total are read one after the other: what dies in between is in one of them.
    const dying = this.of(agent).filter((item) => this.byNow(item, span) !== item.fates).length;
    if (Math.abs(total - letters.length) > dying) {
      this.diverge(`the total is ${total} of ${letters.length} dead letters`);
    }
    const listed = new Map(letters.map((letter) => [letter.event_id, letter]));
    if (listed.size !== letters.length) this.diverge("a dead letter is listed twice");
    for (const { event_id } of letters) this.find(agent, event_id);
    for (const item of this.of(agent)) {
      const letter = listed.get(item.event.id);
      const fates = this.byNow(item, span);
      if (!letter) {
        const others = fates.filter(({ is }) => is !== "dead");
        if (others.length === 0) this.impossible(item, span, "is missing among the dead letters");
        item.fates = others;
        continue;
      }
      this.named(item, letter.delivery_id);
      if (letter.payload?.id !== item.event.id) this.diverge(`The dead letter of ${item.event.id} has another payload`);
      const fit = fates.filter((fate) =>
        fate.is === "dead" && fate.attempts === letter.attempt_count &&
        (fate.reason === undefined ? /attempt/.test(letter.dlq_reason) : letter.dlq_reason.includes(fate.reason))
      );
      if (fit.length === 0) {
        this.impossible(item, span, `is a dead letter after ${letter.attempt_count}: ${letter.dlq_reason}`);
      }
      item.fates = fit;
    }
  }

  replayed(agent: number, span: Span, id: string, status: number): void {
    const item = this.of(agent).find((item) => item.id === id)!;
    const fates = this.byNow(item, span);
    const possible = fates.filter(({ is }) => (is === "dead") === (status === 200));
    if (![200, 404].includes(status) || possible.length === 0) {
      this.impossible(item, span, `was answered ${status} on a replay`);
    }
    item.fates = status === 200 ? [{ is: "pending", attempts: 0, notBefore: -Infinity }] : possible;
  }

  recent(agent: number, span: Span, events: readonly { event_id: string; attempt_count: number }[]): void {
    const listed = new Map(events.map((event) => [event.event_id, event.attempt_count]));
    if (listed.size !== events.length) this.diverge("an event is listed twice among the recent ones");
    for (const event_id of listed.keys()) this.find(agent, event_id);
    for (const item of this.of(agent)) {
      const attempts = listed.get(item.event.id);
      const fit = this.byNow(item, span).filter((fate) =>
        attempts === undefined ? fate.is !== "acknowledged" : fate.is === "acknowledged" && fate.attempts === attempts
      );
      if (fit.length === 0) {
        this.impossible(
          item,
          span,
          attempts ? `is a recent event, attempt ${attempts}` : "is missing among the recent events",
        );
      }
      item.fates = fit;
    }
    // Newest first, where it can be told which is newer.
    let earliest = Infinity;
    for (const { event_id } of events) {
      const item = this.find(agent, event_id);
      const during = item.fates.flatMap((fate) => fate.is === "acknowledged" ? [fate.during] : []);
      if (Math.min(...during.map(({ from }) => from)) > earliest) {
        this.diverge(`${event_id} is not among the newer ones`);
      }
      earliest = Math.min(earliest, Math.max(...during.map(({ to }) => to)));
    }
  }

  diverge(what: string): never {
    throw new Divergence(`${what}\nWhat happened:\n${this.trace.map((line) => `  ${line}`).join("\n")}`);
  }

  /** An answer that only says how many: who is among them is known when it is all or none of the doubtful ones. */
  private counted(
    agent: number,
    span: Span,
    ids: readonly string[],
    count: number,
    verb: string,
    step: (fate: Fate) => { counted?: Fate[]; uncounted?: Fate[] },
  ): void {
    const items = this.of(agent).filter((item) => item.id !== undefined && ids.includes(item.id));
    const outcomes = items.map((item) => {
      const steps = this.byNow(item, span).map(step);
      return {
        item,
        counted: steps.flatMap((outcome) => outcome.counted ?? []),
        uncounted: steps.flatMap((outcome) => outcome.uncounted ?? []),
      };
    });
    const must = outcomes.filter(({ uncounted }) => uncounted.length === 0).length;
    const can = outcomes.filter(({ counted }) => counted.length > 0).length;
    if (count < must || count > can) {
      const fates = items.map((item) => `${item.event.id}: ${shown(item.fates, span)}`).join("; ");
      this.diverge(`${count} were ${verb} where ${must === can ? must : `${must} to ${can}`} can be (${fates})`);
    }
    for (const { item, counted, uncounted } of outcomes) {
      if (counted.length === 0) item.fates = uncounted;
      else if (uncounted.length === 0) item.fates = counted;
      else item.fates = [...(count > must ? counted : []), ...(count < can ? uncounted : [])];
    }
  }

  /** What may have happened by itself before the answer came. */
  private byNow({ fates }: Item, span: Span): readonly Fate[] {
    const mayHaveDied = fates.some((fate) =>
      fate.is === "pending" && fate.attempts === MAX_ATTEMPTS && fate.notBefore <= span.to
    );
    return mayHaveDied ? [...fates, { is: "dead", attempts: MAX_ATTEMPTS }] : fates;
  }

  private find(agent: number, eventId: string): Item {
    const item = this.of(agent).find(({ event }) => event.id === eventId);
    return item ?? this.diverge(`Agent ${agent} has to do with ${eventId}, which is none of its events`);
  }

  private named(item: Item, id: string): void {
    if (item.id !== undefined && item.id !== id) this.diverge(`${item.event.id} changed its id to ${id}`);
    if (item.id === undefined && this.items.some((other) => other.id === id)) {
      this.diverge(`${item.event.id} has the id of another delivery`);
    }
    item.id = id;
  }

  private impossible(item: Item, span: Span, what: string): never {
    this.diverge(`${item.event.id} of agent ${item.agent} ${what}, but it is ${shown(item.fates, span)}`);
  }
}

const lastMoment = ({ fates }: Item) =>
  Math.max(...fates.map((fate) => fate.is === "pending" && fate.attempts > 0 ? fate.notBefore : -Infinity));

const shown = (fates: readonly Fate[], { to }: Span) =>
  fates.map((fate) => {
    if (fate.is !== "pending") return JSON.stringify(fate);
    const left = Math.round(fate.notBefore - to);
    return `pending after ${fate.attempts} attempts${left > 0 ? `, for another ${left} ms` : ""}`;
  }).join(" or ");
