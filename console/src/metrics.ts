// The metrics of the services over time: what they said at each moment, and the rates and quantiles between two moments.

import type { MetricSample } from "../gen/mnemesh/server/v1/server_service_pb";

/** What a service said at a moment. */
export interface Snapshot {
  /** In milliseconds. */
  time: number;
  /** The process; its counters began at zero. */
  startTime: number;
  samples: MetricSample[];
}

type Labels = Record<string, string>;

function matches(sample: MetricSample, name: string, labels: Labels): boolean {
  return sample.name === name && Object.entries(labels).every(([key, value]) => sample.labels[key] === value);
}

/** Returns the sum of a metric over all label values, or over those that match; undefined if there is none. */
export function total({ samples }: Snapshot, name: string, labels: Labels = {}): number | undefined {
  const found = samples.filter((sample) => matches(sample, name, labels));
  return found.length ? found.reduce((sum, { value }) => sum + value, 0) : undefined;
}

/** Returns the values of a label of a metric. */
export function labelValues({ samples }: Snapshot, name: string, label: string): string[] {
  const values = samples.filter((sample) => sample.name === name).map(({ labels }) => labels[label] ?? "");
  return [...new Set(values)];
}

/** Returns whether both are of one process, so that their counters can be compared. */
function areComparable(before: Snapshot, after: Snapshot): boolean {
  return before.startTime === after.startTime && after.time > before.time;
}

/** Returns the growth of a counter per second; undefined between two processes. */
export function rate(before: Snapshot, after: Snapshot, name: string, labels: Labels = {}): number | undefined {
  if (!areComparable(before, after)) {
    return undefined;
  }
  const grown = (total(after, name, labels) ?? 0) - (total(before, name, labels) ?? 0);
  return (1000 * Math.max(grown, 0)) / (after.time - before.time);
}

/** Returns a quantile of what a histogram observed between two moments, in its unit; undefined if it observed nothing. */
export function quantile(before: Snapshot, after: Snapshot, name: string, share: number): number | undefined {
  if (!areComparable(before, after)) {
    return undefined;
  }
  const earlier = buckets(before, name);
  const counts = [...buckets(after, name)].map(([bound, count]) => [bound, count - (earlier.get(bound) ?? 0)] as const);
  counts.sort(([one], [other]) => one - other);
  const all = counts.at(-1)?.[1] ?? 0;
  if (all <= 0) {
    return undefined;
  }
  let lowerBound = 0;
  let lowerCount = 0;
  for (const [bound, count] of counts) {
    if (count >= share * all) {
      if (!Number.isFinite(bound)) {
        return lowerBound;
      }
      const part = count === lowerCount ? 1 : (share * all - lowerCount) / (count - lowerCount);
      return lowerBound + part * (bound - lowerBound);
    }
    [lowerBound, lowerCount] = [bound, count];
  }
  return lowerBound;
}

/** Returns how many observations were at most as large as each bound. */
function buckets({ samples }: Snapshot, name: string): Map<number, number> {
  const found = new Map<number, number>();
  for (const { name: each, labels, value } of samples) {
    if (each === `${name}_bucket`) {
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      found.set(bound, (found.get(bound) ?? 0) + value);
    }
  }
  return found;
}
