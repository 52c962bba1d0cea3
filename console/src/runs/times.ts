// When the parts of a run took place: calls of the model, tools by tier, commits, and the runs that it started.

import { type Run, type RunEvent, type Step } from "../../gen/mnemesh/agents/v1/runs_pb";
import { milliseconds } from "../format";

/** Where the time went. Tools belong to the tier whose memory they use. */
export type Tier = "model" | "core" | "recall" | "archival" | "files" | "tools" | "commit" | "waits";

/** A part of the time axis, in milliseconds since 1970. */
export interface Span {
  tier: Tier;
  from: number;
  to: number;
}

/** A line of the waterfall. */
export interface Lane {
  key: string;
  kind: "step" | "tool" | "run";
  name: string;
  spans: Span[];
}

const ARCHIVAL = /^archival_memory_/;
const RECALL = /^(conversation_search|search_memory|episodic_memory_|store_memories)/;
const CORE = /^(core_memory_|memory|rethink_|finish_rethinking_memory)/;
const FILES = /^(open_files|grep_files|semantic_search_files)$/;

export function tierOf(tool: string): Tier {
  const rules: [RegExp, Tier][] = [
    [ARCHIVAL, "archival"],
    [RECALL, "recall"],
    [CORE, "core"],
    [FILES, "files"],
  ];
  return rules.find(([rule]) => rule.test(tool))?.[1] ?? "tools";
}

interface Call {
  name: string;
  from: number;
  to: number | undefined;
}

/** Returns the calls of each step, from the answer that asked for them to their results. */
export function callsByStep(events: RunEvent[]): Map<string, Call[]> {
  const found = new Map<string, Call[]>();
  const open = new Map<string, Call>();
  for (const { event, createTime, stepId } of events) {
    if (event.case !== "message" || !createTime) {
      continue;
    }
    const time = milliseconds(createTime);
    const { message } = event.value;
    if (message.case === "toolCall") {
      for (const { id, name } of message.value.toolCalls) {
        const call = { name, from: time, to: undefined };
        open.set(id, call);
        found.set(stepId ?? "", [...(found.get(stepId ?? "") ?? []), call]);
      }
    } else if (message.case === "toolReturn") {
      for (const { toolCallId } of message.value.toolReturns) {
        const call = open.get(toolCallId);
        if (call) {
          call.to = time;
        }
      }
    }
  }
  return found;
}

/** Returns the lanes of a run: each step with its call of the model and its commit, then its tools. */
export function lanesOf(steps: Step[], calls: Map<string, Call[]>, now: number): Lane[] {
  return steps.flatMap((step) => {
    const from = step.createTime ? milliseconds(step.createTime) : now;
    const to = endOf(step, from, now);
    const answered = step.modelDuration ? Math.min(from + milliseconds(step.modelDuration), to) : to;
    const ran = (calls.get(step.id) ?? []).map((call) => ({ ...call, from: Math.max(call.from, answered), to: call.to ?? to }));
    // The commit begins when the last tool has returned.
    const last = Math.min(Math.max(answered, ...ran.map((call) => call.to)), Math.max(to, answered));
    const spans: Span[] = [{ tier: "model", from, to: answered }];
    if (to > last) {
      spans.push({ tier: "commit", from: last, to });
    }
    const name = step.origin ? step.origin : `Step ${step.number}`;
    const tools = ran.map((call, index): Lane => ({
      key: `${step.id}/${index}`,
      kind: "tool",
      name: call.name,
      spans: [{ tier: tierOf(call.name), from: call.from, to: Math.max(call.to, call.from) }],
    }));
    return [{ key: step.id, kind: "step", name, spans }, ...tools];
  });
}

function endOf(step: Step, from: number, now: number): number {
  if (step.totalDuration) {
    return from + milliseconds(step.totalDuration);
  }
  return step.completionTime ? milliseconds(step.completionTime) : now;
}

/** Returns the lane of a run that another one started: how long it waited, then its steps and tools. */
export function laneOfRun(run: Run, name: string, steps: Step[], calls: Map<string, Call[]>, now: number): Lane {
  const created = run.createTime ? milliseconds(run.createTime) : now;
  const ended = run.completionTime ? milliseconds(run.completionTime) : now;
  const spans = lanesOf(steps, calls, now).flatMap((lane) => lane.spans);
  const first = spans[0]?.from ?? ended;
  const waits: Span[] = first > created ? [{ tier: "waits", from: created, to: first }] : [];
  return { key: run.id, kind: "run", name, spans: [...waits, ...spans] };
}

/** Returns how long each tier took, longest first. Tools that ran at the same time count once each. */
export function sumByTier(lanes: Lane[]): [Tier, number][] {
  const sums = new Map<Tier, number>();
  for (const { from, to, tier } of lanes.filter(({ kind }) => kind !== "run").flatMap(({ spans }) => spans)) {
    sums.set(tier, (sums.get(tier) ?? 0) + to - from);
  }
  return [...sums].sort(([, one], [, other]) => other - one);
}
