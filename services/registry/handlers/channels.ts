/** Channels, members and feeds: who may see one, who may manage it. */
import type { MemberRole } from "../../../contracts/channels.ts";
import { notFound, ruleBroken, taken } from "../../../contracts/errors.ts";
import { newId, type TenantCaller } from "../../../contracts/identity.ts";
import type { Handlers } from "../../../contracts/operations.ts";
import { routeKeys } from "../../../contracts/subjects.ts";
import type { Tx } from "../../../runtime/database.ts";
import type { Announcement, Announcer } from "../announce.ts";
import { assertFilter } from "../filters.ts";
import { feedRoute, gone, memberRoute } from "../routes.ts";
import type { AgentStore } from "../store/agents.ts";
import type { ChannelStore, ChannelView } from "../store/channels.ts";
import type { TenantStore } from "../store/tenants.ts";

type ChannelOperations =
  | "channels.list"
  | "channels.create"
  | "channels.get"
  | "members.list"
  | "members.add"
  | "members.remove"
  | "feeds.list"
  | "feeds.create"
  | "feeds.delete";

const DIRECT_MEMBERS = 2;

export function channelHandlers(deps: {
  readonly channels: ChannelStore;
  readonly agents: Pick<AgentStore, "find">;
  readonly tenants: Pick<TenantStore, "hasOrgAdmin">;
  readonly announcer: Pick<Announcer, "change">;
}): Pick<Handlers<"registry">, ChannelOperations> {
  const { channels, agents, tenants, announcer } = deps;

  const seen = async (caller: TenantCaller, id: string, tx?: Tx): Promise<ChannelView> => {
    const view = await channels.view(caller, id, tx);
    if (!view) throw notFound("channel", id);
    return view;
  };

  /** Seen, and the caller's to manage. */
  const managed = async (caller: TenantCaller, id: string, tx: Tx): Promise<ChannelView> => {
    const view = await seen(caller, id, tx);
    if (!manages(caller, view.role)) {
      throw ruleBroken("channel_role_required", "Only an owner or admin of the channel may do this", {
        channel_id: id,
      });
    }
    return view;
  };

  const assertParticipant = async (tenant: string, type: "agent" | "org_admin", id: string) => {
    const there = type === "agent" ? await agents.find(tenant, id) : await tenants.hasOrgAdmin(tenant, id);
    if (!there) throw notFound(type, id);
  };

  return {
    "channels.list": ({ query }, { caller }) => channels.list(caller, query),

    "channels.create": ({ body }, { caller, seed }) =>
      announcer.change(async (tx, announce) => {
        const channel = await channels.insert(tx, caller, newId("channel", seed), body);
        if (!channel) {
          const existing = await channels.named(tx, caller, body.name);
          throw taken(`A channel named ${body.name} exists already`, existing ?? null);
        }
        const self = { participant_type: caller.kind, participant_id: caller.id } as const;
        const owner = await channels.member(tx, caller.tenant, channel.id, caller.kind, caller.id) ??
          await channels.insertMember(tx, caller.tenant, channel.id, newId("channel_member", seed), {
            ...self,
            role: "owner",
          });
        announceIf(announce, memberRoute(caller.tenant, owner));
        return channel;
      }),

    async "channels.get"({ path: { id } }, { caller }) {
      return (await seen(caller, id)).channel;
    },

    async "members.list"({ path: { id } }, { caller }) {
      await seen(caller, id);
      return { members: await channels.members(caller.tenant, id) };
    },

    "members.add": ({ path: { id }, body }, { caller, seed }) =>
      announcer.change(async (tx, announce) => {
        const { channel, role } = await seen(caller, id, tx);
        await assertParticipant(caller.tenant, body.participant_type, body.participant_id);
        const joins = channel.type === "open" && body.role === "member" && isSelf(caller, body);
        if (!joins && !manages(caller, role)) {
          throw ruleBroken(
            "channel_role_required",
            "Only an owner or admin of the channel may add others, or add with a role",
            {
              channel_id: id,
            },
          );
        }
        if (body.role === "owner" && caller.kind === "agent" && role !== "owner") {
          throw ruleBroken("owner_required", "Only an owner may add another owner", { channel_id: id });
        }
        const memberId = newId("channel_member", seed);
        const there = await channels.member(tx, caller.tenant, id, body.participant_type, body.participant_id);
        if (there && there.id !== memberId) throw taken("They are a member of the channel already", there.id);
        if (
          channel.type === "direct" && !there &&
          (await channels.countMembers(tx, caller.tenant, id)).all >= DIRECT_MEMBERS
        ) {
          throw ruleBroken("direct_channel_full", "A direct channel has two members at most", { channel_id: id });
        }
        const member = there ?? await channels.insertMember(tx, caller.tenant, id, memberId, body);
        announceIf(announce, memberRoute(caller.tenant, member));
        return member;
      }),

    "members.remove": ({ path: { id, participant_type, participant_id } }, { caller }) =>
      announcer.change(async (tx, announce) => {
        const { role } = await seen(caller, id, tx);
        const member = await channels.member(tx, caller.tenant, id, participant_type, participant_id);
        if (!member) throw notFound("channel_member", participant_id);
        if (!isSelf(caller, member) && !manages(caller, role)) {
          throw ruleBroken("channel_role_required", "Only an owner or admin of the channel may remove others", {
            channel_id: id,
          });
        }
        if (member.role === "owner" && caller.kind === "agent" && !isSelf(caller, member) && role !== "owner") {
          throw ruleBroken("owner_required", "Only an owner may remove another owner", { channel_id: id });
        }
        if (member.role === "owner" && (await channels.countMembers(tx, caller.tenant, id)).owners === 1) {
          throw ruleBroken("last_owner", "A channel keeps at least one owner", { channel_id: id });
        }
        await channels.removeMember(tx, caller.tenant, member.id);
        const route = memberRoute(caller.tenant, member);
        if (route) announce(gone(route));
      }),

    async "feeds.list"({ path: { id } }, { caller }) {
      await seen(caller, id);
      return { feeds: await channels.feeds(caller.tenant, id) };
    },

    "feeds.create": ({ path: { id }, body }, { caller, seed }) => {
      assertFilter(body.filter_expression);
      return announcer.change(async (tx, announce) => {
        await managed(caller, id, tx);
        const feed = await channels.insertFeed(tx, caller.tenant, id, newId("channel_feed", seed), body);
        announce(feedRoute(caller.tenant, feed));
        return feed;
      });
    },

    "feeds.delete": ({ path: { id, feed_id } }, { caller }) =>
      announcer.change(async (tx, announce) => {
        await managed(caller, id, tx);
        if (!await channels.deleteFeed(tx, caller.tenant, id, feed_id)) throw notFound("channel_feed", feed_id);
        announce({ bucket: "routes", key: routeKeys.feed(caller.tenant, id, feed_id) });
      }),
  };
}

const manages = (caller: TenantCaller, role: MemberRole | undefined) =>
  caller.kind === "org_admin" || role === "owner" || role === "admin";

const isSelf = (caller: TenantCaller, who: { participant_type: string; participant_id: string }) =>
  caller.kind === who.participant_type && caller.id === who.participant_id;

const announceIf = (announce: (item: Announcement) => void, item: Announcement | undefined) => item && announce(item);
