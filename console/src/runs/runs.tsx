// The panel Runs: the turns of the agent with their steps as a waterfall, their tokens and their errors.

import { useState } from "preact/hooks";
import { type Agent, StopReason } from "../../gen/mnemesh/agents/v1/agents_pb";
import { type Run, type RunEvent, RunOrigin, RunStatus, type Step } from "../../gen/mnemesh/agents/v1/runs_pb";
import { SortOrder } from "../../gen/mnemesh/types/v1/paging_pb";
import { newRequestId, problemOfRun } from "../api";
import { agents, runs } from "../clients/agents";
import { StepTrace } from "../context/context";
import { count, dollars, duration, milliseconds, number, textOf, words } from "../format";
import { Busy, Empty, ProblemBox, Time, useAction, useInterval, useLoad } from "../parts";
import { linkTo } from "../route";
import "./runs.css";
import { callsByStep, type Lane, laneOfRun, lanesOf } from "./times";
import { Waterfall } from "./waterfall";

const PAGE = 30;
const REFRESH_MS = 3_000;
/** How many of the runs that a run started are shown: a group has one per turn. */
const MOST_CHILDREN = 30;

const STATUSES: Record<string, RunStatus[]> = {
  all: [],
  active: [RunStatus.CREATED, RunStatus.RUNNING],
  failed: [RunStatus.FAILED],
  cancelled: [RunStatus.CANCELLED],
};

function isActive(run: Run): boolean {
  return run.status === RunStatus.CREATED || run.status === RunStatus.RUNNING;
}

export function Runs({ agent }: { agent: Agent }) {
  const [shown, setShown] = useState("all");
  const [older, setOlder] = useState<{ rows: Run[]; token: string }>({ rows: [], token: "" });
  const more = useAction();
  const page = async (pageToken: string, signal?: AbortSignal) => {
    const filter = { agentIds: [agent.id], statuses: STATUSES[shown]! };
    const found = await runs.listRuns({ filter, pageSize: PAGE, pageToken, order: SortOrder.DESCENDING }, { signal });
    return { rows: found.runs, token: found.nextPageToken };
  };
  const { value, problem, reload } = useLoad((signal) => page("", signal), [agent.id, shown]);
  useInterval(reload, REFRESH_MS);
  const newest = value?.rows ?? [];
  const known = new Set(newest.map((run) => run.id));
  const rows = [...newest, ...older.rows.filter((run) => !known.has(run.id))];
  const token = older.rows.length ? older.token : (value?.token ?? "");
  const loadMore = () =>
    more.run(async () => {
      const next = await page(token);
      setOlder({ rows: [...older.rows, ...next.rows], token: next.token });
    });
  return (
    <div class="panel">
      <div class="page">
        <header class="page-head">
          <h2>Runs</h2>
          <select
            class="narrow"
            aria-label="Which runs"
            value={shown}
            onChange={(event) => (setShown(event.currentTarget.value), setOlder({ rows: [], token: "" }))}
          >
            {Object.keys(STATUSES).map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </header>
        <ProblemBox problem={problem ?? more.problem} retry={reload} />
        {!value && !problem && <Busy what="Loading runs" />}
        {value && rows.length === 0 && (
          <Empty title={shown === "all" ? "The agent has not run yet. Send it a message in the chat." : "There is no such run."} />
        )}
        {rows.map((run) => (
          <RunView key={run.id} run={run} onChange={reload} />
        ))}
        {token && (
          <button type="button" disabled={more.busy} onClick={() => void loadMore()}>
            Earlier runs
          </button>
        )}
      </div>
    </div>
  );
}

function RunView({ run, onChange }: { run: Run; onChange: () => Promise<void> }) {
  const [isOpen, setOpen] = useState(false);
  const action = useAction();
  const asked = run.input.map(({ content }) => textOf(content)).join(" ");
  const cancel = () =>
    action.run(async () => {
      const target = { case: "runs" as const, value: { runIds: [run.id] } };
      await runs.cancelRuns({ requestId: newRequestId(), target });
      await onChange();
    });
  const retry = () =>
    action.run(async () => {
      await runs.retryRun({ requestId: newRequestId(), runId: run.id });
      await onChange();
    });
  return (
    <details class="card step" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span class="run-input">{asked || words(RunOrigin[run.origin])}</span>
        <span class="muted">
          <Time at={run.createTime} />
          {run.totalDuration && ` · ${duration(milliseconds(run.totalDuration))}`} · {count(run.stepCount, "step")}
          {run.usage?.totalTokens !== undefined && ` · ${count(Number(run.usage.totalTokens), "token")}`}
          {run.usage?.costNanoUsd !== undefined && ` · ${dollars(run.usage.costNanoUsd)}`}
        </span>
        <Status run={run} />
      </summary>
      {run.error && <ProblemBox problem={problemOfRun(run.error)} />}
      <ProblemBox problem={action.problem} />
      {isOpen && <RunDetails run={run} />}
      <div class="buttons">
        {isActive(run) && (
          <button type="button" disabled={action.busy} onClick={() => void cancel()}>
            Cancel the run
          </button>
        )}
        {(run.status === RunStatus.FAILED || run.status === RunStatus.CANCELLED) && (
          <button type="button" disabled={action.busy} onClick={() => void retry()}>
            Retry
          </button>
        )}
        <code class="muted">{run.id}</code>
      </div>
    </details>
  );
}

function Status({ run }: { run: Run }) {
  const isPlain = run.status === RunStatus.COMPLETED && run.stopReason === StopReason.END_TURN;
  const stop = run.stopReason === undefined || isPlain ? "" : `, ${words(StopReason[run.stopReason])}`;
  const kind = run.status === RunStatus.FAILED ? "bad" : isActive(run) ? "warn" : "";
  return <span class={`tag ${kind}`}>{`${words(RunStatus[run.status])}${stop}`}</span>;
}

interface Details {
  steps: Step[];
  lanes: Lane[];
  started: { run: Run; agent: Agent | undefined }[];
}

/** Reads the steps of a run, when its tools ran, and the runs that it started. */
async function load(run: Run, signal: AbortSignal): Promise<Details> {
  const children = run.childRunIds.slice(0, MOST_CHILDREN);
  const [steps, events, started] = await Promise.all([
    stepsOf(run, signal),
    eventsOf(run, signal),
    Promise.all(children.map(async (runId) => (await runs.getRun({ runId }, { signal })).run!)),
  ]);
  const agentIds = [...new Set(started.map(({ agentId }) => agentId))];
  const found = agentIds.length ? (await agents.listAgents({ filter: { agentIds } }, { signal })).agents : [];
  const now = Date.now();
  const agentOf = (child: Run) => found.find(({ id }) => id === child.agentId);
  const lanes = await Promise.all(
    started.map(async (child) => {
      const [ofChild, happened] = await Promise.all([stepsOf(child, signal), eventsOf(child, signal)]);
      return laneOfRun(child, nameOf(child, agentOf(child)), ofChild, callsByStep(happened), now);
    }),
  );
  return {
    steps,
    lanes: [...lanesOf(steps, callsByStep(events), now), ...lanes.filter(({ spans }) => spans.length > 0)],
    started: started.map((child) => ({ run: child, agent: agentOf(child) })),
  };
}

function nameOf(run: Run, agent: Agent | undefined): string {
  return `${agent?.name ?? run.agentId}, ${words(RunOrigin[run.origin])}`;
}

async function stepsOf(run: Run, signal: AbortSignal): Promise<Step[]> {
  const request = { filter: { runId: run.id }, pageSize: 200, order: SortOrder.ASCENDING };
  return (await runs.listSteps(request, { signal })).steps;
}

/** Returns the stored events of a run that has ended. A stream of one that goes on would not end. */
async function eventsOf(run: Run, signal: AbortSignal): Promise<RunEvent[]> {
  const found: RunEvent[] = [];
  if (!isActive(run)) {
    for await (const { event } of runs.streamRun({ runId: run.id }, { signal })) {
      if (event) {
        found.push(event);
      }
    }
  }
  return found;
}

function RunDetails({ run }: { run: Run }) {
  const { value, problem, reload } = useLoad(
    (signal) => load(run, signal),
    [run.id, run.stepCount, run.status, run.childRunIds.length],
  );
  const usage = run.usage;
  const figures: [string, bigint | undefined][] = [
    ["prompt", usage?.promptTokens],
    ["of it cached", usage?.cachedInputTokens],
    ["completion", usage?.completionTokens],
    ["of it reasoning", usage?.reasoningTokens],
  ];
  return (
    <>
      <p class="muted">
        {figures.flatMap(([name, tokens]) => (tokens === undefined ? [] : [`${name} ${number(tokens)}`])).join(" · ")}
        {run.timeToFirstToken && ` · first token after ${duration(milliseconds(run.timeToFirstToken))}`}
      </p>
      <ProblemBox problem={problem} retry={reload} />
      {!value && !problem && <Busy what="Loading steps" />}
      {value && value.lanes.length > 0 && <Waterfall lanes={value.lanes} />}
      {value && value.started.length > 0 && <Started started={value.started} onChange={reload} />}
      {run.parentRunId && <Parent runId={run.parentRunId} />}
      {value?.steps.map((step) => <StepTrace key={step.id} step={step} />)}
    </>
  );
}

/** The runs that a run started, such as those of the agents that maintain its memory. */
function Started({ started, onChange }: { started: Details["started"]; onChange: () => Promise<void> }) {
  const goesOn = started.some(({ run }) => isActive(run));
  useInterval(onChange, goesOn ? REFRESH_MS : 0);
  return (
    <section class="started" aria-label="Runs that it started">
      <h3>Runs that it started</h3>
      <ul>
        {started.map(({ run, agent }) => (
          <li key={run.id}>
            <a href={linkTo(run.agentId, "runs")}>{agent?.name ?? run.agentId}</a>
            <span class="muted">
              {words(RunOrigin[run.origin])} · {count(run.stepCount, "step")}
              {run.totalDuration && ` · ${duration(milliseconds(run.totalDuration))}`}
              {run.usage?.totalTokens !== undefined && ` · ${count(Number(run.usage.totalTokens), "token")}`}
            </span>
            <Status run={run} />
            {run.error && <ProblemBox problem={problemOfRun(run.error)} />}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The run that started this one. */
function Parent({ runId }: { runId: string }) {
  const { value } = useLoad(async (signal) => {
    const { run } = await runs.getRun({ runId }, { signal });
    return run?.agentId ? (await agents.getAgent({ agentId: run.agentId }, { signal })).agent : undefined;
  }, [runId]);
  return value ? (
    <p class="muted">
      Started by a run of <a href={linkTo(value.id, "runs")}>{value.name}</a>.
    </p>
  ) : null;
}
