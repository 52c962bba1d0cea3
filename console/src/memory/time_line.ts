// Facts and episodes on one axis of time: which fact superseded which, and where each stands.

import type { Episode, Fact } from "../../gen/mnemesh/recall/v1/episodes_pb";
import { milliseconds } from "../format";

/** A part of the axis, in percent of its width. */
export interface Span {
  left: number;
  width: number;
}

/** Facts that superseded one another, oldest first. */
export type Chain = Fact[];

/** Returns the chains of facts, that with the newest change first. A fact whose neighbours are not given stands alone. */
export function chainsOf(facts: Fact[]): Chain[] {
  const byId = new Map(facts.map((fact) => [fact.id, fact]));
  const chains: Chain[] = [];
  for (const fact of facts) {
    if (fact.supersededById && byId.has(fact.supersededById)) {
      continue; // a later fact of the chain brings it along
    }
    const chain: Chain = [];
    const seen = new Set<string>();
    for (let at: Fact | undefined = fact; at && !seen.has(at.id); at = at.supersedesId ? byId.get(at.supersedesId) : undefined) {
      seen.add(at.id);
      chain.unshift(at);
    }
    chains.push(chain);
  }
  return chains.sort((one, other) => changeOf(other) - changeOf(one));
}

function changeOf(chain: Chain): number {
  return Math.max(...chain.map((fact) => (fact.closeTime ? milliseconds(fact.closeTime) : learnedAt(fact))));
}

function learnedAt(fact: Fact): number {
  return fact.createTime ? milliseconds(fact.createTime) : 0;
}

/** Returns when a fact began to hold; if that is not known, when it was learned. */
function startOf(fact: Fact): number {
  return fact.validFromTime ? milliseconds(fact.validFromTime) : learnedAt(fact);
}

function endOf(fact: Fact, now: number): number {
  return fact.invalidTime ? milliseconds(fact.invalidTime) : now;
}

function rangeOf(episode: Episode): [number, number] {
  const created = episode.createTime ? milliseconds(episode.createTime) : 0;
  const start = episode.startTime ? milliseconds(episode.startTime) : created;
  return [start, episode.endTime ? milliseconds(episode.endTime) : start];
}

/** The axis: from the first beginning to now. */
export class Axis {
  private readonly first: number;
  private readonly last: number;

  constructor(facts: Fact[], episodes: Episode[], now: number) {
    const starts = [...facts.map(startOf), ...episodes.map((episode) => rangeOf(episode)[0])];
    const ends = [...facts.map((fact) => endOf(fact, now)), now];
    const length = Math.max(...ends) - Math.min(...starts, now);
    // Some room, so that what began first does not begin at the edge.
    this.first = Math.min(...starts, now) - Math.max(length * 0.02, 1000);
    this.last = Math.max(...ends);
  }

  fact(fact: Fact): Span {
    return this.span(startOf(fact), endOf(fact, this.last));
  }

  episode(episode: Episode): Span {
    return this.span(...rangeOf(episode));
  }

  /** Returns marks with their dates; with the time of day if the axis is short. */
  marks(): { left: number; text: string }[] {
    const length = this.last - this.first;
    const isShort = length < 2 * 86_400_000;
    const format = new Intl.DateTimeFormat("en", isShort ? { timeStyle: "short", dateStyle: "medium" } : { dateStyle: "medium" });
    return [0, 0.5, 1].map((share) => ({ left: 100 * share, text: format.format(this.first + share * length) }));
  }

  private span(start: number, end: number): Span {
    const length = Math.max(this.last - this.first, 1);
    const left = Math.min(99, Math.max(0, (100 * (start - this.first)) / length));
    return { left, width: Math.min(100 - left, Math.max(0.8, (100 * (end - start)) / length)) };
  }
}
