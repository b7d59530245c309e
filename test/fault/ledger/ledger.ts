/** What was sent, handed out and answered, written down outside of the service; and what must be true of it. */
export interface Span {
  readonly from: number;
  readonly to: number;
}

interface Event {
  readonly tenant: string;
  readonly id: string;
  /** Agents that must receive it. */
  readonly recipients: readonly string[];
  readonly sentAt: number;
  accepted: number;
  answered: boolean;
  /** Tries whose answer never came. */
  lost: number;
}

interface HandedOut {
  readonly attempt: number;
  readonly span: Span;
}

interface Delivery {
  readonly agent: string;
  readonly event: Event;
  readonly handed: HandedOut[];
  /** When the first answer to an acknowledgement of it came. */
  acknowledgedAt: number;
  /** An acknowledgement of it was sent and not heard of. */
  isDoubtful: boolean;
  deadAfter?: number;
}

export class Ledger {
  readonly events = new Map<string, Event>();
  readonly deliveries = new Map<string, Delivery>();
  readonly wrongs: string[] = [];
  /** Moments at which the broker was killed. */
  readonly brokerKills: number[] = [];
  /** Acknowledgements counted by the service, by agent. */
  readonly counted = new Map<string, number>();
  readonly maxAttempts: number;

  constructor(maxAttempts: number) {
    this.maxAttempts = maxAttempts;
  }

  sends(tenant: string, id: string, recipients: readonly string[]): void {
    const key = `${tenant} ${id}`;
    if (this.events.has(key)) return;
    const sentAt = performance.now();
    this.events.set(key, { tenant, id, recipients, sentAt, accepted: 0, answered: false, lost: 0 });
  }

  lost(tenant: string, id: string): void {
    this.events.get(`${tenant} ${id}`)!.lost++;
  }

  answered(tenant: string, id: string, status: string): void {
    const event = this.events.get(`${tenant} ${id}`)!;
    if (status === "accepted" && ++event.accepted > 1) this.wrongs.push(`${id} was accepted twice`);
    if (status === "duplicate" && event.accepted === 0 && event.lost === 0) {
      this.wrongs.push(`${id} was a duplicate of nothing`);
    }
    event.answered = true;
  }

  handedOut(
    tenant: string,
    agent: string,
    span: Span,
    delivery: { id: string; event_id: string; attempt_count: number; payload: { data?: unknown } },
  ): void {
    const event = this.events.get(`${tenant} ${delivery.event_id}`);
    const from = (delivery.payload.data as { tenant?: string } | undefined)?.tenant;
    if (!event || from !== tenant) {
      return void this.wrongs.push(`${agent} of ${tenant} received ${delivery.event_id} of ${from}`);
    }
    if (!event.recipients.includes(agent)) {
      this.wrongs.push(`${agent} received ${event.id}, which it has no interest in`);
    }
    let known = this.deliveries.get(delivery.id);
    if (!known) {
      known = { agent, event, handed: [], acknowledgedAt: Infinity, isDoubtful: false };
      this.deliveries.set(delivery.id, known);
    }
    if (known.agent !== agent || known.event !== event) this.wrongs.push(`${delivery.id} is two deliveries`);
    if (known.acknowledgedAt < span.from) {
      this.wrongs.push(
        `${delivery.id} (${event.id}) came ${
          Math.round(span.from - known.acknowledgedAt)
        } ms after its acknowledgement was answered; ${this.sinceKill(known.acknowledgedAt)}`,
      );
    }
    if (delivery.attempt_count > this.maxAttempts) {
      this.wrongs.push(`${event.id} came as attempt ${delivery.attempt_count} of ${this.maxAttempts}`);
    }
    known.handed.push({ attempt: delivery.attempt_count, span });
  }

  acknowledged(agent: string, ids: readonly string[], count: number): void {
    const now = performance.now();
    for (const id of ids) {
      const delivery = this.deliveries.get(id)!;
      delivery.acknowledgedAt = Math.min(delivery.acknowledgedAt, now);
    }
    this.counted.set(agent, (this.counted.get(agent) ?? 0) + count);
  }

  acknowledgementLost(ids: readonly string[]): void {
    for (const id of ids) this.deliveries.get(id)!.isDoubtful = true;
  }

  dead(tenant: string, agent: string, letter: { delivery_id: string; event_id: string; attempt_count: number }): void {
    const event = this.events.get(`${tenant} ${letter.event_id}`);
    if (!event) return void this.wrongs.push(`${letter.event_id} is a dead letter of ${tenant} and none of its events`);
    let known = this.deliveries.get(letter.delivery_id);
    if (!known) {
      // Every time it was handed out, the answer was lost.
      known = { agent, event, handed: [], acknowledgedAt: Infinity, isDoubtful: false };
      this.deliveries.set(letter.delivery_id, known);
    }
    if (known.agent !== agent) this.wrongs.push(`${letter.delivery_id} is a dead letter of another agent`);
    known.deadAfter = letter.attempt_count;
  }

  /** What was promised and has not come: every event answered, for every recipient. */
  missing(): string[] {
    const ended = new Set(
      this.deliveries.values().filter(({ acknowledgedAt, deadAfter }) =>
        acknowledgedAt < Infinity || deadAfter !== undefined
      ).map(({ event, agent }) => `${event.tenant} ${event.id} ${agent}`),
    );
    return this.events.values().flatMap(({ tenant, id, recipients, answered }) =>
      answered
        ? recipients.map((agent) => `${tenant} ${id} ${agent}`).filter((name) => !ended.has(name))
        : [`${tenant} ${id} was never answered`]
    ).toArray();
  }

  /** Acknowledgements are counted once each: between what was certainly heard of and what may have been. */
  countsOf(agent: string): { least: number; counted: number; most: number } {
    const own = this.deliveries.values().filter((delivery) => delivery.agent === agent).toArray();
    const ended = own.filter(({ acknowledgedAt, deadAfter }) => acknowledgedAt < Infinity && deadAfter === undefined);
    const certain = ended.filter(({ isDoubtful }) => !isDoubtful);
    return { least: certain.length, counted: this.counted.get(agent) ?? 0, most: ended.length };
  }

  /** Deliveries handed out more often than there are attempts; a crash of the broker may cost it the memory of one. */
  overHanded(): string[] {
    return this.deliveries.entries().filter(([, { handed }]) =>
      handed.length > this.maxAttempts + this.brokerKills.length
    ).map(([id, { handed }]) => `${id} was handed out ${handed.length} times`).toArray();
  }

  /** Events queued twice for one agent. */
  doubled(): { id: string; sentBeforeKillMs: number }[] {
    const pairs = Map.groupBy(this.deliveries.values(), ({ event, agent }) => `${event.tenant} ${event.id} ${agent}`);
    return pairs.entries().filter(([, deliveries]) => deliveries.length > 1).map(([id, [first]]) => ({
      id,
      sentBeforeKillMs: Math.min(
        ...this.brokerKills.map((kill) => kill - first!.event.sentAt).filter((ms) => ms >= 0),
      ),
    })).toArray();
  }

  private sinceKill(at: number): string {
    const near = this.brokerKills.map((kill) => Math.round(kill - at));
    return `kills of the broker came ${near.join(", ") || "never"} ms after that`;
  }
}
