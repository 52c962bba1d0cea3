// The panel Settings: the name, the model and the system prompt of an agent, its tools, its secrets, and its schedules.

import { useEffect, useState } from "preact/hooks";
import type { Agent, AttachedTool } from "../gen/mnemesh/agents/v1/agents_pb";
import type { Schedule } from "../gen/mnemesh/agents/v1/schedules_pb";
import { SortOrder } from "../gen/mnemesh/types/v1/paging_pb";
import { newRequestId } from "./api";
import { agents, models, schedules } from "./clients/agents";
import { tools } from "./clients/tools";
import { count, exact, textOf } from "./format";
import { Listing, Row, usePages } from "./list";
import { Check, Field, ProblemBox, TextField, Time, useAction, useLoad } from "./parts";
import { linkToSection } from "./route";
import { Secrets } from "./secrets";

const MOST_OFFERED = 200;
const PAGE = 50;

interface SettingsProps {
  agent: Agent;
  onChange: () => Promise<void>;
}

export function Settings({ agent, onChange }: SettingsProps) {
  const saveSecrets = async (requestId: string, values: { name: string; value?: string }[]) => {
    const secrets = values.map(({ name, value }) => ({ key: name, value }));
    await agents.updateAgent({ requestId, agent: { id: agent.id, secrets }, updateMask: { paths: ["secrets"] } });
    await onChange();
  };
  return (
    <div class="panel">
      <div class="page">
        <Basics agent={agent} onChange={onChange} />
        <AgentTools agent={agent} onChange={onChange} />
        <Secrets
          names={agent.secrets.map(({ key }) => key)}
          hint="Environment variables of the agent's tools. Values are stored encrypted and never shown again. They override those of the tools."
          save={saveSecrets}
        />
        <Schedules agentId={agent.id} />
      </div>
    </div>
  );
}

/** The fields of an agent that the form changes. */
function fieldsOf({ name, model, system, enableSleeptime = false }: Agent) {
  return { name, model, system, enableSleeptime };
}

const PATHS = { name: "name", model: "model", system: "system", enableSleeptime: "enable_sleeptime" } as const;

function Basics({ agent, onChange }: SettingsProps) {
  const stored = fieldsOf(agent);
  const [draft, setDraft] = useState(stored);
  useEffect(() => setDraft(fieldsOf(agent)), [agent.revision]);
  const known = useLoad(async (signal) => {
    const { models: found } = await models.listModels({ pageSize: 1000, hidden: false }, { signal });
    return found.map(({ handle }) => handle);
  }, []);
  const action = useAction();
  const change = (changed: Partial<typeof draft>) => setDraft({ ...draft, ...changed });
  const changed = (Object.keys(PATHS) as (keyof typeof PATHS)[]).filter((key) => draft[key] !== stored[key]);
  const save = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      const request = { agent: { id: agent.id, ...draft, name: draft.name.trim() }, ifRevision: agent.revision };
      const updateMask = { paths: changed.map((key) => PATHS[key]) };
      await agents.updateAgent({ requestId: newRequestId(), ...request, updateMask });
      await onChange();
    });
  };
  const handles = [...new Set([draft.model, ...(known.value ?? [])])];
  return (
    <form class="stack" onSubmit={save}>
      <h2>Settings</h2>
      <div class="columns">
        <TextField label="Name" required value={draft.name} onChange={(name) => change({ name })} />
        <Field label="Model">
          {(id) => (
            <select id={id} value={draft.model} onChange={(event) => change({ model: event.currentTarget.value })}>
              {handles.map((handle) => (
                <option key={handle} value={handle}>
                  {handle}
                </option>
              ))}
            </select>
          )}
        </Field>
      </div>
      <TextField
        label="System prompt"
        hint="{CORE_MEMORY} marks the place of the blocks. The panel Context shows what the model gets."
        rows={Math.min(16, Math.max(5, Math.ceil(draft.system.length / 110)))}
        value={draft.system}
        onChange={(system) => change({ system })}
      />
      <Check checked={draft.enableSleeptime} onChange={(enableSleeptime) => change({ enableSleeptime })}>
        A partner maintains its memory in the background (sleep-time)
      </Check>
      <ProblemBox problem={action.problem ?? known.problem} />
      <div class="buttons">
        <button type="submit" class="primary" disabled={action.busy || changed.length === 0}>
          Save
        </button>
        {changed.length > 0 && (
          <button type="button" onClick={() => setDraft(stored)}>
            Discard
          </button>
        )}
      </div>
    </form>
  );
}

function keyOf(tool: AttachedTool) {
  return tool.toolId ? { case: "toolId" as const, value: tool.toolId } : { case: "name" as const, value: tool.name };
}

/** The tools that the agent holds, and whether it asks a person before it calls one. */
function AgentTools({ agent, onChange }: SettingsProps) {
  const [chosen, setChosen] = useState("");
  /** What was checked a moment ago, until the agent is loaded again. */
  const [asked, setAsked] = useState<Record<string, boolean>>({});
  const action = useAction();
  const known = useLoad(async (signal) => (await tools.listTools({ pageSize: MOST_OFFERED }, { signal })).tools, []);
  const others = known.value?.filter(({ name }) => !agent.tools.some((held) => held.name === name));
  const defaults = new Map(known.value?.map(({ name, defaultRequiresApproval }) => [name, defaultRequiresApproval]));
  const run = (work: () => Promise<unknown>) =>
    action.run(async () => {
      await work();
      await onChange();
    });
  const give = (event: Event) => {
    event.preventDefault();
    const tool = { case: "name" as const, value: chosen };
    void run(async () => {
      await agents.attachTool({ requestId: newRequestId(), agentId: agent.id, tool });
      setChosen("");
    });
  };
  const take = (held: AttachedTool) =>
    run(() => agents.detachTool({ requestId: newRequestId(), agentId: agent.id, tool: keyOf(held) }));
  const ask = ({ name: toolName }: AttachedTool, requiresApproval: boolean) => {
    setAsked({ [toolName]: requiresApproval });
    const request = { requestId: newRequestId(), agentId: agent.id, toolName, requiresApproval };
    void run(() => agents.setToolApproval(request)).finally(() => setAsked({}));
  };
  return (
    <section class="stack" aria-labelledby="agent-tools-title">
      <header class="page-head">
        <h2 id="agent-tools-title">{count(agent.tools.length, "tool")}</h2>
        <form class="search" onSubmit={give}>
          <select
            required
            aria-label="Tool to give to the agent"
            value={chosen}
            onChange={(event) => setChosen(event.currentTarget.value)}
          >
            <option value="">Choose a tool</option>
            {others?.map(({ id, name }) => (
              <option key={id || name} value={name}>
                {name}
              </option>
            ))}
          </select>
          <button type="submit" disabled={action.busy || !chosen}>
            Give it
          </button>
        </form>
      </header>
      <ProblemBox problem={action.problem ?? known.problem} />
      <ul class="rows" aria-label="Tools of the agent">
        {agent.tools.map((held) => (
          <Row
            key={held.name}
            name={held.name}
            isMono
            href={held.toolId && linkToSection("tools", held.toolId)}
            tags={held.builtin && <span class="tag">built-in</span>}
            text={
              <Check checked={asked[held.name] ?? held.requiresApproval ?? defaults.get(held.name) ?? false} onChange={(asks) => ask(held, asks)}>
                asks a person first
              </Check>
            }
            end={
              <button
                type="button"
                class="quiet danger"
                disabled={action.busy}
                aria-label={`Take ${held.name} away`}
                onClick={() => void take(held)}
              >
                Take away
              </button>
            }
          />
        ))}
      </ul>
    </section>
  );
}

/** When messages are sent to the agent without a person. The command line, clients and the agent itself change them. */
function Schedules({ agentId }: { agentId: string }) {
  const pages = usePages(
    async (pageToken, signal) => {
      const request = { filter: { agentId }, pageSize: PAGE, pageToken, order: SortOrder.DESCENDING };
      const found = await schedules.listSchedules(request, { signal });
      return { rows: found.schedules, token: found.nextPageToken };
    },
    [agentId],
  );
  return (
    <section class="stack" aria-labelledby="schedules-title">
      <h2 id="schedules-title">Schedules</h2>
      <p class="hint">Messages that the mesh sends to the agent at set times. mnemesh schedules creates and changes them.</p>
      <Listing pages={pages} of="Schedules" empty={<p class="muted">There is no schedule yet.</p>}>
        {(schedule) => (
          <Row
            key={schedule.id}
            name={schedule.name || schedule.messages.map(({ content }) => textOf(content)).join(" ")}
            text={`${timesOf(schedule)}${schedule.lastSkip ? ` · not started: ${schedule.lastSkip}` : ""}`}
            tags={
              <>
                {schedule.createdByAgent && <span class="tag">by the agent</span>}
                {count(schedule.runCount, "run")}
              </>
            }
            end={<span class="muted">last <Time at={schedule.lastRunTime} /></span>}
          />
        )}
      </Listing>
    </section>
  );
}

function timesOf({ cron, timeZone, nextRunTime, paused }: Schedule): string {
  const next = nextRunTime ? `next ${exact(nextRunTime)}` : paused ? "paused" : "ended";
  return cron ? `${cron} ${timeZone || "UTC"} · ${next}` : next;
}
