// The services of the mesh: whether they answer, their versions and queues, and charts of what the mesh does.

import { timestampMs } from "@bufbuild/protobuf/wkt";
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import type { GetServerStatusResponse } from "../gen/mnemesh/server/v1/server_service_pb";
import { baseUrl, type Problem, problemOf } from "./api";
import { servers } from "./clients/mesh";
import { Chart, type Line } from "./chart";
import { bytes, duration, number } from "./format";
import { labelValues, quantile, rate, type Snapshot, total } from "./metrics";
import { Busy, useInterval } from "./parts";

const SERVICES = ["orchestrator", "blocks", "recall", "archival", "tools", "files"] as const;
type Service = (typeof SERVICES)[number];
const POLL_MS = 4_000;
const ANSWER_MS = 5_000;
const LONGEST_SPAN_MS = 10 * 60_000;
const SHORTEST_SPAN_MS = 60_000;
/** The time over which rates and quantiles are taken, so that a few turns do not make a line of spikes. */
const WINDOW_MS = 15_000;
const RUNS = "mnemesh_runs_total";
const RUN_SECONDS = "mnemesh_run_seconds";
const TOKENS = "mnemesh_provider_tokens_total";
const MODEL_SECONDS = "mnemesh_provider_seconds";

interface ServiceState {
  status?: GetServerStatusResponse;
  problem?: Problem;
}

/** What was seen in this page, also before the panel was left and opened again. */
const states = signal<Partial<Record<Service, ServiceState>>>({});
const gateway = signal<{ version: string; milliseconds: number }>({ version: "", milliseconds: 0 });
const history = signal<Snapshot[]>([]);

/** Services that were asked and have not answered yet: one that hangs does not hold up the others. */
const asked = new Set<string>();

function poll(): void {
  void askOnce("gateway", async () => {
    const began = performance.now();
    gateway.value = { version: await askGateway(), milliseconds: performance.now() - began };
  });
  for (const service of SERVICES) {
    void askOnce(service, async () => {
      const state = await ask(service);
      states.value = { ...states.value, [service]: state };
      if (service === "orchestrator" && state.status) {
        const snapshot = snapshotOf(state.status);
        history.value = [...history.value.filter(({ time }) => time > snapshot.time - LONGEST_SPAN_MS), snapshot];
      }
    });
  }
}

async function askOnce(service: string, call: () => Promise<void>): Promise<void> {
  if (!asked.has(service)) {
    asked.add(service);
    await call();
    asked.delete(service);
  }
}

async function ask(service: Service): Promise<ServiceState> {
  try {
    return { status: await servers.getServerStatus({ service }, { timeoutMs: ANSWER_MS }) };
  } catch (error) {
    return { problem: problemOf(error) };
  }
}

async function askGateway(): Promise<string> {
  try {
    const signal = AbortSignal.timeout(ANSWER_MS);
    const { version } = (await (await fetch(`${baseUrl}/livez`, { signal })).json()) as { version: string };
    return version;
  } catch {
    return "";
  }
}

function snapshotOf(status: GetServerStatusResponse): Snapshot {
  const startTime = status.startTime ? timestampMs(status.startTime) : 0;
  return { time: Date.now(), startTime, samples: status.metrics };
}

export function MeshView() {
  const [isPaused, setPaused] = useState(false);
  useEffect(() => {
    if (!isPaused) {
      poll();
    }
  }, [isPaused]);
  useInterval(poll, isPaused ? 0 : POLL_MS);
  const known = states.value;
  const isWithheld = known.orchestrator?.status?.metricsWithheld ?? false;
  return (
    <section class="page wide" aria-labelledby="mesh-title">
      <header class="page-head">
        <h1 id="mesh-title">Mesh</h1>
        <span class="muted">{isPaused ? "paused" : `every ${POLL_MS / 1000} seconds`}</span>
        <button type="button" onClick={() => setPaused(!isPaused)}>
          {isPaused ? "Go on" : "Pause"}
        </button>
      </header>
      {!gateway.value.version && Object.keys(known).length === 0 ? (
        <Busy what="Asking the services" />
      ) : (
        <ul class="services" aria-label="Services">
          <GatewayCard />
          {SERVICES.map((service) => (
            <ServiceCard key={service} service={service} state={known[service] ?? {}} />
          ))}
        </ul>
      )}
      {isWithheld ? (
        <p class="muted">
          Queues and charts are of all organizations. They are shown to tokens of the default organization, which mnemesh
          tokens create makes without --organization.
        </p>
      ) : (
        <Charts />
      )}
    </section>
  );
}

function GatewayCard() {
  const { version, milliseconds } = gateway.value;
  return (
    <li class={version ? "card service" : "card service is-down"}>
      <h2>gateway</h2>
      <Health isUp={version !== ""} />
      <p class="muted">{version ? `version ${version}` : "It does not answer. Is the mesh running?"}</p>
      {version && (
        <dl class="figures">
          <div>
            <dt>answers after</dt>
            <dd class="figure">{duration(milliseconds)}</dd>
          </div>
        </dl>
      )}
    </li>
  );
}

function Health({ isUp }: { isUp: boolean }) {
  return <span class={isUp ? "tag good" : "tag bad"}>{isUp ? "answers" : "down"}</span>;
}

function ServiceCard({ service, state: { status, problem } }: { service: Service; state: ServiceState }) {
  const isReached = gateway.value.version !== "";
  const isOther = status && isReached && status.version !== gateway.value.version;
  return (
    <li class={problem && isReached ? "card service is-down" : "card service"}>
      <h2>{service}</h2>
      {problem && !isReached ? <span class="tag">unknown</span> : (status || problem) && <Health isUp={!problem} />}
      {problem && !isReached && <p class="muted">It is asked through the gateway.</p>}
      {problem && isReached && (
        <p>
          {problem.message} <span class="muted">The log of {service} says why: mnemesh logs {service}.</span>
        </p>
      )}
      {status && (
        <p class="muted">
          version {status.version}
          {isOther && <span class="tag warn">not that of the gateway</span>}
          {status.startTime && ", "}
          {status.startTime && <span class="uptime">up {duration(Date.now() - timestampMs(status.startTime))}</span>}
        </p>
      )}
      {status && !status.metricsWithheld && <Figures service={service} snapshot={snapshotOf(status)} />}
    </li>
  );
}

interface FigureSource {
  label: string;
  metric: string;
  format?: (value: number) => string;
  /** From this value on, the figure stands out. */
  alarm?: number;
}

const INDEX: FigureSource[] = [
  { label: "index lag", metric: "mnemesh_index_outbox_lag_seconds", format: seconds, alarm: 30 },
  { label: "changes to index", metric: "mnemesh_index_outbox_rows" },
  { label: "left to rebuild", metric: "mnemesh_index_rebuild_remaining_records", alarm: 1 },
];
const FIGURES: Partial<Record<Service, FigureSource[]>> = {
  orchestrator: [
    { label: "runs active", metric: "mnemesh_runs_active" },
    { label: "runs waiting", metric: "mnemesh_runs_waiting", alarm: 20 },
    { label: "approvals waiting", metric: "mnemesh_approvals_waiting" },
  ],
  blocks: [{ label: "transactions", metric: "mnemesh_sql_transactions_total" }],
  recall: INDEX,
  archival: INDEX,
  tools: [
    { label: "tools running", metric: "mnemesh_tools_slots_held" },
    { label: "tools waiting", metric: "mnemesh_tools_slots_waiting", alarm: 10 },
    { label: "MCP sessions", metric: "mnemesh_tools_mcp_sessions" },
  ],
  files: [
    { label: "files in work", metric: "mnemesh_files_processing" },
    { label: "files waiting", metric: "mnemesh_files_waiting", alarm: 100 },
    { label: "received", metric: "mnemesh_files_received_bytes_total", format: bytes },
  ],
};

function Figures({ service, snapshot }: { service: Service; snapshot: Snapshot }) {
  const found = (FIGURES[service] ?? []).flatMap((source) => {
    const value = total(snapshot, source.metric);
    return value === undefined ? [] : [{ ...source, value }];
  });
  return (
    <dl class="figures">
      {found.map(({ label, value, format = number, alarm = Infinity }) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd class={value >= alarm ? "figure is-bad" : "figure"}>{format(value)}</dd>
        </div>
      ))}
    </dl>
  );
}

function seconds(value: number): string {
  return value ? duration(1000 * value) : "none";
}

/** Of each moment: itself, and the one that was a window earlier. */
function pairs(): [Snapshot | undefined, Snapshot][] {
  const all = history.value;
  return all.map((after, index) => {
    const earlier = all.slice(0, index);
    const before = earlier.findLast(({ time }) => time <= after.time - WINDOW_MS) ?? earlier[0];
    return [before, after];
  });
}

function Charts() {
  const all = history.value;
  const moments = pairs();
  const times = all.map(({ time }) => time);
  const latest = all.at(-1);
  const over = (read: (before: Snapshot, after: Snapshot) => number | undefined) =>
    moments.map(([before, after]) => before && read(before, after));
  const quantiles = (metric: string): Line[] =>
    [
      ["median", 0.5],
      ["95 %", 0.95],
    ].map(([name, share]) => ({
      name: String(name),
      values: over((before, after) => quantile(before, after, metric, Number(share))),
    }));
  const ended = (status: string) => over((before, after) => rate(before, after, RUNS, { status }));
  const models = latest ? labelValues(latest, TOKENS, "model") : [];
  const tokens = models.map((model) => ({
    name: model,
    values: over((before, after) => {
      const read = rate(before, after, TOKENS, { model, kind: "prompt" });
      const written = rate(before, after, TOKENS, { model, kind: "completion" });
      return read === undefined || written === undefined ? undefined : read + written;
    }),
  }));
  const waiting = all.map((each) => total(each, "mnemesh_runs_waiting"));
  const active = all.map((each) => total(each, "mnemesh_runs_active"));
  const shared = { times, span: Math.max(SHORTEST_SPAN_MS, (times.at(-1) ?? 0) - (times[0] ?? 0)) };
  const empty = "No turn has ended since the panel was opened.";
  return (
    <div class="charts">
      <Chart
        {...shared}
        title="Turns per second"
        lines={[
          { name: "completed", values: ended("completed") },
          { name: "failed", values: ended("failed") },
        ]}
        format={perSecond}
        empty="The first figures come in a few seconds."
      />
      <Chart {...shared} title="Turns" lines={quantiles(RUN_SECONDS)} format={seconds} empty={empty} />
      <Chart {...shared} title="Model calls" lines={quantiles(MODEL_SECONDS)} format={seconds} empty={empty} />
      <Chart {...shared} title="Tokens per second" lines={tokens} format={perSecond} empty="No model was called yet." />
      <Chart
        {...shared}
        title="Runs"
        lines={[
          { name: "active", values: active },
          { name: "waiting", values: waiting },
        ]}
        format={(value) => number(Math.round(value * 10) / 10)}
        empty="The first figures come in a few seconds."
      />
    </div>
  );
}

function perSecond(value: number): string {
  return number(value >= 10 ? Math.round(value) : Math.round(value * 100) / 100);
}
