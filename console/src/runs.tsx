// The panel Runs: the turns of the agent with their steps as a waterfall, their tokens and their errors.

import { useEffect, useState } from "preact/hooks";
import { type Agent, StopReason } from "../gen/mnemesh/agents/v1/agents_pb";
import { type Run, RunOrigin, RunStatus, type Step } from "../gen/mnemesh/agents/v1/runs_pb";
import { SortOrder } from "../gen/mnemesh/types/v1/paging_pb";
import { newRequestId, problemOfRun, runs } from "./api";
import { StepTrace } from "./context";
import { count, dollars, duration, milliseconds, number, textOf, words } from "./format";
import { Busy, Empty, ProblemBox, Time, useAction, useLoad } from "./parts";

const PAGE = 30;
const REFRESH_MS = 3_000;

function isActive(run: Run): boolean {
  return run.status === RunStatus.CREATED || run.status === RunStatus.RUNNING;
}

export function Runs({ agent }: { agent: Agent }) {
  const [older, setOlder] = useState<{ rows: Run[]; token: string }>({ rows: [], token: "" });
  const more = useAction();
  const page = async (pageToken: string, signal?: AbortSignal) => {
    const filter = { agentIds: [agent.id] };
    const found = await runs.listRuns({ filter, pageSize: PAGE, pageToken, order: SortOrder.DESCENDING }, { signal });
    return { rows: found.runs, token: found.nextPageToken };
  };
  const { value, problem, reload } = useLoad((signal) => page("", signal), [agent.id]);
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) {
        void reload();
      }
    }, REFRESH_MS);
    return () => clearInterval(timer);
  }, [agent.id]);
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
        <h2>Runs</h2>
        <ProblemBox problem={problem ?? more.problem} retry={reload} />
        {!value && !problem && <Busy what="Loading runs" />}
        {value && rows.length === 0 && <Empty title="The agent has not run yet. Send it a message in the chat." />}
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

function RunDetails({ run }: { run: Run }) {
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const request = { filter: { runId: run.id }, pageSize: 200, order: SortOrder.ASCENDING };
      return (await runs.listSteps(request, { signal })).steps;
    },
    [run.id, run.stepCount, run.status],
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
        {run.childRunIds.length > 0 && ` · started ${count(run.childRunIds.length, "further run")}`}
      </p>
      <ProblemBox problem={problem} retry={reload} />
      {!value && !problem && <Busy what="Loading steps" />}
      {value && value.length > 0 && <Waterfall steps={value} />}
      {value?.map((step) => <StepTrace key={step.id} step={step} />)}
    </>
  );
}

/** The steps on one time axis: the call of the model, then the rest of the step, which is its tools and its commit. */
function Waterfall({ steps }: { steps: Step[] }) {
  const start = Math.min(...steps.map((step) => (step.createTime ? milliseconds(step.createTime) : Infinity)));
  const spans = steps.map((step) => {
    const from = step.createTime ? milliseconds(step.createTime) : start;
    const total = step.totalDuration
      ? milliseconds(step.totalDuration)
      : (step.completionTime ? milliseconds(step.completionTime) : Date.now()) - from;
    const model = Math.min(step.modelDuration ? milliseconds(step.modelDuration) : total, total);
    return { step, from: Math.max(from - start, 0), model, total };
  });
  const end = Math.max(1, ...spans.map(({ from, total }) => from + total));
  const percent = (value: number) => `${Math.max((100 * value) / end, 0.4)}%`;
  return (
    <figure class="waterfall">
      <figcaption class="muted">
        <span class="swatch is-model" aria-hidden="true" /> model <span class="swatch is-rest" aria-hidden="true" /> tools
        and commit · {duration(end)}
      </figcaption>
      <ol>
        {spans.map(({ step, from, model, total }) => (
          <li key={step.id}>
            <span class="muted">{step.number}</span>
            <span class="track" aria-label={`model ${duration(model)}, whole step ${duration(total)}`} role="img">
              <span class="span is-model" style={{ left: percent(from), width: percent(model) }} />
              <span class="span is-rest" style={{ left: percent(from + model), width: percent(total - model) }} />
            </span>
            <span class="figure">{duration(total)}</span>
          </li>
        ))}
      </ol>
    </figure>
  );
}
