/** From what each signal says about a memory to one score between 0 and 1. */
import type { Explanation } from "../../contracts/memory.ts";
import type { z } from "zod";
import type { Candidate } from "./index/port.ts";

/**
 * How much words count against meaning. Chosen on nine judged sets, from conversations to abstracts, so that on none of
 * them both together are clearly worse than the better alone; see docs/decisions/memory-ranking.md.
 */
const LEXICAL_SHARE = 0.6;

/**
 * How far a prior moves a score, at most half of this up or down. Bounded, because it settles near ties and must never
 * lift what is recent, certain or important above what is asked for.
 */
const PRIOR = 0.1;
const HIGHEST_PRIOR = (1 + PRIOR / 2) ** 3;

/** A memory of this age is half as recent as one of now. */
const HALF_LIFE_DAYS = 30;
const DAY_MS = 86_400_000;

export interface Ranked {
  readonly id: string;
  readonly score: number;
  readonly explanation: z.output<typeof Explanation>;
}

/** Best first; equals by id, newest first, so that the order is the same each time. */
export function rank(candidates: readonly Candidate[], nowMs: number): Ranked[] {
  return candidates.map((candidate) => ranked(candidate, nowMs))
    .sort((a, b) => b.score - a.score || (a.id < b.id ? 1 : -1));
}

function ranked({ id, similarity, lexical, confidence, importance, freshAt }: Candidate, nowMs: number): Ranked {
  const recency = recencyOf(freshAt, nowMs);
  const priors = prior(recency) * prior(confidence) * prior(importance);
  return {
    id,
    score: round(relevance(similarity, lexical) * priors / HIGHEST_PRIOR),
    explanation: {
      similarity: rounded(similarity),
      lexical: rounded(lexical),
      recency: round(recency),
      confidence: round(confidence),
      importance: round(importance),
    },
  };
}

/** A signal that could not be had takes no part, rather than counting as disagreement. */
export function relevance(similarity: number | null, lexical: number | null): number {
  if (similarity === null) return lexical ?? 0;
  if (lexical === null) return similarity;
  return LEXICAL_SHARE * lexical + (1 - LEXICAL_SHARE) * similarity;
}

/** 1 for now and for what lies ahead, falling by half each half-life. */
export const recencyOf = (atMs: number, nowMs: number): number =>
  2 ** (-Math.max(0, nowMs - atMs) / (HALF_LIFE_DAYS * DAY_MS));

const prior = (value: number): number => 1 + PRIOR * (value - 0.5);
const round = (value: number): number => Math.round(value * 1e6) / 1e6;
const rounded = (value: number | null): number | null => value === null ? null : round(value);
