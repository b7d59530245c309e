/** All SQL over channels, their members and their feeds. */
import type {
  Channel,
  ChannelCreate,
  Feed,
  FeedCreate,
  Member,
  MemberAdd,
  MemberRole,
} from "../../../contracts/channels.ts";
import type { ParticipantType, TenantCaller } from "../../../contracts/identity.ts";
import type { Sql, Tx } from "../../../runtime/database.ts";

/** A channel as one caller stands to it. */
export interface ChannelView {
  readonly channel: Channel;
  /** The caller's role in it, if any. */
  readonly role: MemberRole | undefined;
}

export function channelStore(sql: Sql) {
  const columns =
    sql`c.id, c.tenant_id, c.name, c.description, c.type, c.created_by_type, c.created_by_id, c.created_at, c.updated_at`;
  const memberColumns = sql`id, channel_id, participant_type, participant_id, role, joined_at`;
  const feedColumns = sql`id, channel_id, event_type_glob, filter_expression, active, created_at`;
  const own = (caller: TenantCaller) =>
    sql`left join registry.members m
      on m.channel_id = c.id and m.participant_type = ${caller.kind} and m.participant_id = ${caller.id}`;
  const visible = (caller: TenantCaller) =>
    caller.kind === "org_admin" ? sql`true` : sql`(c.type = 'open' or m.id is not null)`;
  return {
    async list(caller: TenantCaller, page: { offset: number; limit: number }) {
      const matching = sql`from registry.channels c ${own(caller)} where c.tenant_id = ${caller.tenant} and ${
        visible(caller)
      }`;
      const [channels, [count]] = await Promise.all([
        sql<Channel[]>`select ${columns} ${matching} order by c.id desc offset ${page.offset} limit ${page.limit}`,
        sql<{ total: number }[]>`select count(*)::int as total ${matching}`,
      ]);
      return { channels: [...channels], total: count!.total };
    },

    /** Undefined when there is none, or none the caller may see. With a transaction, locked against other changes. */
    async view(caller: TenantCaller, id: string, tx?: Tx): Promise<ChannelView | undefined> {
      const [row] = await (tx ?? sql)<(Channel & { own_role: MemberRole | null })[]>`
        select ${columns}, m.role as own_role from registry.channels c ${own(caller)}
        where c.tenant_id = ${caller.tenant} and c.id = ${id} and ${visible(caller)} ${
        tx ? tx`for update of c` : sql``
      }`;
      if (!row) return undefined;
      const { own_role, ...channel } = row;
      return { channel, role: own_role ?? undefined };
    },

    /** Undefined when the name is taken in the tenant. A second insert under the same id is a retry. */
    async insert(tx: Tx, caller: TenantCaller, id: string, create: ChannelCreate): Promise<Channel | undefined> {
      await tx`insert into registry.channels ${
        tx({ id, tenant_id: caller.tenant, ...create, created_by_type: caller.kind, created_by_id: caller.id })
      } on conflict do nothing`;
      const [made] = await tx<
        Channel[]
      >`select ${columns} from registry.channels c where c.tenant_id = ${caller.tenant} and c.id = ${id}`;
      return made;
    },

    /** The channel of that name, if the caller may know of it. */
    async named(tx: Tx, caller: TenantCaller, name: string): Promise<string | undefined> {
      const [found] = await tx<{ id: string }[]>`select c.id from registry.channels c ${own(caller)}
        where c.tenant_id = ${caller.tenant} and c.name = ${name} and ${visible(caller)}`;
      return found?.id;
    },

    members: (tenant: string, channel: string): Promise<Member[]> =>
      sql<Member[]>`select ${memberColumns} from registry.members
        where tenant_id = ${tenant} and channel_id = ${channel} order by id`,

    async member(
      tx: Tx,
      tenant: string,
      channel: string,
      type: ParticipantType,
      participant: string,
    ): Promise<Member | undefined> {
      const [found] = await tx<Member[]>`select ${memberColumns} from registry.members
        where tenant_id = ${tenant} and channel_id = ${channel} and participant_type = ${type} and participant_id = ${participant}`;
      return found;
    },

    async insertMember(tx: Tx, tenant: string, channel: string, id: string, add: MemberAdd): Promise<Member> {
      const [made] = await tx<Member[]>`insert into registry.members ${
        tx({ id, tenant_id: tenant, channel_id: channel, ...add })
      }
        returning ${memberColumns}`;
      return made!;
    },

    async countMembers(tx: Tx, tenant: string, channel: string): Promise<{ all: number; owners: number }> {
      const [count] = await tx<{ all: number; owners: number }[]>`
        select count(*)::int as all, count(*) filter (where role = 'owner')::int as owners
        from registry.members where tenant_id = ${tenant} and channel_id = ${channel}`;
      return count!;
    },

    removeMember: (tx: Tx, tenant: string, id: string) =>
      tx`delete from registry.members where tenant_id = ${tenant} and id = ${id}`,

    feeds: (tenant: string, channel: string): Promise<Feed[]> =>
      sql<Feed[]>`select ${feedColumns} from registry.feeds
        where tenant_id = ${tenant} and channel_id = ${channel} order by id`,

    async insertFeed(tx: Tx, tenant: string, channel: string, id: string, create: FeedCreate): Promise<Feed> {
      await tx`insert into registry.feeds ${
        tx({ id, tenant_id: tenant, channel_id: channel, ...create })
      } on conflict (id) do nothing`;
      const [made] = await tx<
        Feed[]
      >`select ${feedColumns} from registry.feeds where tenant_id = ${tenant} and id = ${id}`;
      return made!;
    },

    async deleteFeed(tx: Tx, tenant: string, channel: string, id: string): Promise<boolean> {
      return (await tx`delete from registry.feeds
        where tenant_id = ${tenant} and channel_id = ${channel} and id = ${id} returning id`).length > 0;
    },

    membersAfter: (tx: Tx, id: string, limit: number): Promise<(Member & { tenant_id: string })[]> =>
      tx<(Member & { tenant_id: string })[]>`
        select ${memberColumns}, tenant_id from registry.members where id > ${id} order by id limit ${limit} for share`,

    feedsAfter: (tx: Tx, id: string, limit: number): Promise<(Feed & { tenant_id: string })[]> =>
      tx<(Feed & { tenant_id: string })[]>`
        select ${feedColumns}, tenant_id from registry.feeds where id > ${id} order by id limit ${limit} for share`,
  };
}
export type ChannelStore = ReturnType<typeof channelStore>;
