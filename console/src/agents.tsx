// The list of agents, with the size of their memory; creating, moving and deleting them.

import { create, toJsonString } from "@bufbuild/protobuf";
import { useState } from "preact/hooks";
import { type Agent, AgentType } from "../gen/mnemesh/agents/v1/agents_pb";
import { AgentOrderBy, CreateAgentRequestSchema } from "../gen/mnemesh/agents/v1/agents_service_pb";
import type { CoreMemory } from "../gen/mnemesh/blocks/v1/blocks_pb";
import { agents, episodes, models, newRequestId, passages } from "./api";
import { count, words } from "./format";
import { Busy, Dialog, Empty, Field, Json, ProblemBox, Time, useAction, useLoad } from "./parts";
import { linkTo } from "./route";
import { ExportAgent, ImportAgent } from "./transfer";

const PAGE = 50;
const TYPES = [
  AgentType.LETTA_V1,
  AgentType.MEMGPT_V2,
  AgentType.MEMGPT,
  AgentType.REACT,
  AgentType.WORKFLOW,
  AgentType.VOICE_CONVO,
];

interface Listed {
  agent: Agent;
  memory: CoreMemory | undefined;
  /** The facts and episodes of its own scope. */
  learned: { facts: bigint; episodes: bigint } | undefined;
}

type Opened = { kind: "create" | "import" } | { kind: "delete" | "export"; row: Listed };

export function AgentList() {
  const [search, setSearch] = useState("");
  const [older, setOlder] = useState<{ rows: Listed[]; token: string }>({ rows: [], token: "" });
  const [dialog, setDialog] = useState<Opened>();
  const more = useAction();
  const page = async (pageToken: string, signal?: AbortSignal) => {
    const filter = search ? { textSearch: search } : {};
    const request = { pageSize: PAGE, pageToken, filter, view: { blocks: true }, orderBy: AgentOrderBy.UPDATE_TIME };
    const [found, learned] = await Promise.all([agents.listAgents(request, { signal }), learnedByAgent(signal)]);
    const rows = found.agents.map((agent, index) => ({
      ...{ agent, memory: found.coreMemories[index], learned: learned.get(agent.id) },
    }));
    return { rows, token: found.nextPageToken };
  };
  const { value, problem, reload } = useLoad(async (signal) => {
    const first = await page("", signal);
    setOlder({ rows: [], token: first.token });
    return first.rows;
  }, [search]);
  const rows = [...(value ?? []), ...older.rows];
  const loadMore = () =>
    more.run(async () => {
      const next = await page(older.token);
      setOlder({ rows: [...older.rows, ...next.rows], token: next.token });
    });
  const close = () => setDialog(undefined);
  return (
    <section class="page" aria-labelledby="agents-title">
      <header class="page-head">
        <h1 id="agents-title">Agents</h1>
        <input
          type="search"
          placeholder="Search by name"
          aria-label="Search agents by name"
          value={search}
          onChange={(event) => setSearch(event.currentTarget.value.trim())}
        />
        <button type="button" onClick={() => setDialog({ kind: "import" })}>
          Import
        </button>
        <button type="button" class="primary" onClick={() => setDialog({ kind: "create" })}>
          New agent
        </button>
      </header>
      <ProblemBox problem={problem} retry={reload} />
      {!value && !problem && <Busy what="Loading agents" />}
      {value && rows.length === 0 && <NoAgents search={search} />}
      {rows.length > 0 && (
        <ul class="agents">
          {rows.map((row) => (
            <AgentRow key={row.agent.id} row={row} onOpen={(kind) => setDialog({ kind, row })} />
          ))}
        </ul>
      )}
      {older.token && (
        <button type="button" disabled={more.busy} onClick={() => void loadMore()}>
          More agents
        </button>
      )}
      <ProblemBox problem={more.problem} />
      {dialog?.kind === "create" && <CreateAgent onClose={close} />}
      {dialog?.kind === "import" && <ImportAgent onClose={close} onImported={() => void reload()} />}
      {dialog?.kind === "export" && <ExportAgent agent={dialog.row.agent} onClose={close} />}
      {dialog?.kind === "delete" && (
        <DeleteAgent row={dialog.row} onClose={close} onDeleted={() => void reload()} />
      )}
    </section>
  );
}

function NoAgents({ search }: { search: string }) {
  return search ? (
    <Empty title={`No agent has “${search}” in its name.`} />
  ) : (
    <Empty title="There is no agent yet.">
      <p>
        An agent has a model, core memory that it edits itself, and a record of all its conversations. Create the first
        one with <strong>New agent</strong>, or bring one along with <strong>Import</strong>. Without a configured provider, the model mnemesh/rehearsal answers by fixed
        rules.
      </p>
    </Empty>
  );
}

const SCOPES = 1000;

/** Returns how much each agent has learned. The list is shown without it if recall does not answer. */
async function learnedByAgent(signal: AbortSignal | undefined) {
  const { scopes } = await episodes.listMemoryScopes({ pageSize: SCOPES }, { signal }).catch(() => ({ scopes: [] }));
  return new Map(
    scopes.flatMap(({ scope, factCount, episodeCount }) =>
      scope?.scope.case === "agentId" ? [[scope.scope.value, { facts: factCount, episodes: episodeCount }] as const] : [],
    ),
  );
}

/** The size of core memory, and below it that of the archives and of what was learned. */
function MemorySize({ agent, memory, learned }: Listed) {
  const blocks = memory?.blocks ?? [];
  const size = blocks.reduce((sum, block) => sum + Array.from(block.value).length, 0);
  const { value } = useLoad((signal) => passages.getArchivalSummary({ agentId: agent.id }, { signal }), [agent.id]);
  const further = [
    value?.passageCount ? count(Number(value.passageCount), "passage") : "",
    learned?.facts ? count(Number(learned.facts), "fact") : "",
    learned?.episodes ? count(Number(learned.episodes), "episode") : "",
  ].filter(Boolean);
  return (
    <span class="muted lines">
      <span>
        {count(blocks.length, "block")}, {count(size, "character")}
      </span>
      {further.length > 0 && <span>{further.join(", ")}</span>}
    </span>
  );
}

function AgentRow({ row, onOpen }: { row: Listed; onOpen: (kind: "delete" | "export") => void }) {
  const { agent } = row;
  return (
    <li class="card agent">
      <span class="lines">
        <a class="agent-name" href={linkTo(agent.id)}>
          <span title={agent.name}>{agent.name}</span>
        </a>
        <span class="agent-model">{agent.model}</span>
      </span>
      <MemorySize {...row} />
      <span class="muted lines">
        <span>
          last run <Time at={agent.lastRunCompletionTime} />
        </span>
        {agent.pendingApprovalRequestId && <span class="tag warn">waits for approval</span>}
      </span>
      <span class="row-actions">
        <button type="button" class="quiet" aria-label={`Export ${agent.name}`} onClick={() => onOpen("export")}>
          Export
        </button>
        <button type="button" class="quiet danger" aria-label={`Delete ${agent.name}`} onClick={() => onOpen("delete")}>
          Delete
        </button>
      </span>
    </li>
  );
}

function CreateAgent({ onClose }: { onClose: () => void }) {
  const [requestId] = useState(newRequestId);
  const [name, setName] = useState("");
  const [model, setModel] = useState("");
  const [type, setType] = useState(AgentType.LETTA_V1);
  const [blocks, setBlocks] = useState([
    { label: "human", value: "" },
    { label: "persona", value: "" },
  ]);
  const action = useAction();
  const known = useLoad(async (signal) => {
    const [{ models: found }, { model: standard }] = await Promise.all([
      models.listModels({ pageSize: 1000, hidden: false }, { signal }),
      models.getModel({}, { signal }),
    ]);
    return { handles: found.map(({ handle }) => handle), standard: standard?.handle ?? "" };
  }, []);
  const chosen = model || known.value?.standard || "";
  const request = create(CreateAgentRequestSchema, {
    requestId,
    agent: { name: name.trim(), model: chosen, type },
    blocks: blocks.filter(({ label }) => label.trim()),
  });
  const change = (index: number, changed: Partial<{ label: string; value: string }>) =>
    setBlocks(blocks.map((block, at) => (at === index ? { ...block, ...changed } : block)));
  const submit = async (event: Event) => {
    event.preventDefault();
    await action.run(async () => {
      const { agent } = await agents.createAgent(request);
      location.hash = linkTo(agent!.id);
    });
  };
  return (
    <Dialog title="New agent" onClose={onClose}>
      <form onSubmit={(event) => void submit(event)}>
        <Field label="Name">
          {(id) => (
            <input id={id} required autoFocus value={name} onInput={(event) => setName(event.currentTarget.value)} />
          )}
        </Field>
        <div class="columns">
          <Field label="Model">
            {(id) => (
              <select id={id} value={chosen} onChange={(event) => setModel(event.currentTarget.value)}>
                {!known.value && <option value="">default (models are loading)</option>}
                {known.value?.handles.map((handle) => (
                  <option key={handle} value={handle}>
                    {handle === known.value?.standard ? `${handle} (default)` : handle}
                  </option>
                ))}
              </select>
            )}
          </Field>
          <Field label="Type">
            {(id) => (
              <select id={id} value={type} onChange={(event) => setType(Number(event.currentTarget.value))}>
                {TYPES.map((each) => (
                  <option key={each} value={each}>
                    {words(AgentType[each])}
                  </option>
                ))}
              </select>
            )}
          </Field>
        </div>
        <ProblemBox problem={known.problem} retry={known.reload} />
        <fieldset>
          <legend>Blocks of core memory</legend>
          {blocks.map((block, index) => (
            <div class="block-row" key={index}>
              <input
                aria-label={`Label of block ${index + 1}`}
                placeholder="label"
                value={block.label}
                onInput={(event) => change(index, { label: event.currentTarget.value })}
              />
              <textarea
                aria-label={`Text of block ${block.label || index + 1}`}
                placeholder={index === 0 ? "What the agent knows about you" : "Text"}
                rows={2}
                value={block.value}
                onInput={(event) => change(index, { value: event.currentTarget.value })}
              />
              <button
                type="button"
                class="quiet"
                aria-label={`Remove block ${block.label}`}
                onClick={() => setBlocks(blocks.filter((_, at) => at !== index))}
              >
                ✕
              </button>
            </div>
          ))}
          <button type="button" onClick={() => setBlocks([...blocks, { label: "", value: "" }])}>
            Add a block
          </button>
        </fieldset>
        <details>
          <summary>The request that will be sent</summary>
          <Json text={toJsonString(CreateAgentRequestSchema, request)} label="Request of CreateAgent" />
        </details>
        <ProblemBox problem={action.problem} />
        <footer class="dialog-foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={action.busy}>
            Create agent
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

interface DeleteAgentProps {
  row: Listed;
  onClose: () => void;
  onDeleted: () => void;
}

function DeleteAgent({ row: { agent, memory }, onClose, onDeleted }: DeleteAgentProps) {
  const [requestId] = useState(newRequestId);
  const action = useAction();
  const own = (memory?.blocks ?? []).filter((block) => block.createdForAgentId === agent.id);
  const others = (memory?.blocks ?? []).filter((block) => block.createdForAgentId !== agent.id);
  const labels = (held: typeof own) => held.map((block) => block.label).join(", ");
  const confirm = () =>
    action.run(async () => {
      await agents.deleteAgent({ requestId, agentId: agent.id });
      onClose();
      onDeleted();
    });
  return (
    <Dialog title={`Delete ${agent.name}?`} onClose={onClose}>
      <p>This cannot be undone. It deletes in every service:</p>
      <ul>
        <li>the agent, all its conversations and every message;</li>
        {own.length > 0 && <li>its blocks {labels(own)}, unless another agent holds them;</li>}
        <li>the archive that its first passage created, unless another agent holds it;</li>
        <li>its sleep-time partners, if it has any.</li>
      </ul>
      <p>
        {others.length > 0 && `Kept are the blocks ${labels(others)}, which existed before. `}
        Tools and folders are kept.
      </p>
      <ProblemBox problem={action.problem} />
      <footer class="dialog-foot">
        <button type="button" autoFocus onClick={onClose}>
          Keep it
        </button>
        <button type="button" class="primary danger" disabled={action.busy} onClick={() => void confirm()}>
          Delete agent
        </button>
      </footer>
    </Dialog>
  );
}
