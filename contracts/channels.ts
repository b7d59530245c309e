/** Channels, their members and their feeds. */
import { z } from "zod";
import { Description, FilterExpression, Moment, Name, Page, TypeGlob } from "./fields.ts";
import { idOf, ParticipantType } from "./identity.ts";

export const ChannelType = z.enum(["open", "private", "direct"]);
export type ChannelType = z.output<typeof ChannelType>;

export const Channel = z.object({
  id: idOf("channel"),
  tenant_id: idOf("tenant"),
  name: Name,
  description: Description,
  type: ChannelType,
  created_by_type: ParticipantType,
  created_by_id: z.string(),
  created_at: Moment,
  updated_at: Moment,
}).meta({ id: "Channel" });
export type Channel = z.output<typeof Channel>;

export const ChannelPath = z.object({ id: idOf("channel") });
export const ChannelCreate = z.object({ name: Name, description: Description.default(null), type: ChannelType });
export type ChannelCreate = z.output<typeof ChannelCreate>;
export const ChannelQuery = Page;
export const ChannelList = z.object({ channels: z.array(Channel), total: z.int() });

export const MemberRole = z.enum(["owner", "admin", "member"]);
export type MemberRole = z.output<typeof MemberRole>;

export const Member = z.object({
  id: idOf("channel_member"),
  channel_id: idOf("channel"),
  participant_type: ParticipantType,
  participant_id: idOf("agent"),
  role: MemberRole,
  joined_at: Moment,
}).meta({ id: "ChannelMember" });
export type Member = z.output<typeof Member>;

export const MemberAdd = z.object({
  participant_type: ParticipantType,
  participant_id: idOf("agent"),
  role: MemberRole.default("member"),
});
export type MemberAdd = z.output<typeof MemberAdd>;
export const MemberList = z.object({ members: z.array(Member) });
export const MemberPath = ChannelPath.extend({ participant_type: ParticipantType, participant_id: idOf("agent") });

export const Feed = z.object({
  id: idOf("channel_feed"),
  channel_id: idOf("channel"),
  event_type_glob: TypeGlob,
  filter_expression: FilterExpression,
  active: z.boolean(),
  created_at: Moment,
}).meta({ id: "ChannelFeed" });
export type Feed = z.output<typeof Feed>;

export const FeedCreate = z.object({ event_type_glob: TypeGlob, filter_expression: FilterExpression.default(null) });
export type FeedCreate = z.output<typeof FeedCreate>;
export const FeedList = z.object({ feeds: z.array(Feed) });
export const FeedPath = ChannelPath.extend({ feed_id: idOf("channel_feed") });
