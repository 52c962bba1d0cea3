// The list of agents, with the size of their memory.

import { useState } from "preact/hooks";
import type { Agent } from "../gen/mnemesh/agents/v1/agents_pb";
import { AgentOrderBy } from "../gen/mnemesh/agents/v1/agents_service_pb";
import type { CoreMemory } from "../gen/mnemesh/blocks/v1/blocks_pb";
import { agents } from "./clients/agents";
import { episodes, passages } from "./clients/memory";
import { CreateAgent } from "./create_agent";
import { FormDialog } from "./dialog";
import { count } from "./format";
import { Filter, Listing, usePages } from "./list";
import { Empty, Time, useLoad } from "./parts";
import { linkTo } from "./route";
import { ExportAgent, ImportAgent } from "./transfer";

const PAGE = 50;
interface Listed {
  agent: Agent;
  memory: CoreMemory | undefined;
  /** The facts and episodes of its own scope. */
  learned: { facts: bigint; episodes: bigint } | undefined;
}

type Opened = { kind: "create" | "import" } | { kind: "delete" | "export"; row: Listed };

export function AgentList() {
  const [search, setSearch] = useState("");
  const [dialog, setDialog] = useState<Opened>();
  const pages = usePages(
    async (pageToken, signal) => {
      const filter = search ? { textSearch: search } : {};
      const request = { pageSize: PAGE, pageToken, filter, view: { blocks: true }, orderBy: AgentOrderBy.UPDATE_TIME };
      const [found, learned] = await Promise.all([agents.listAgents(request, { signal }), learnedByAgent(signal)]);
      const rows = found.agents.map((agent, index) => ({
        ...{ agent, memory: found.coreMemories[index], learned: learned.get(agent.id) },
      }));
      return { rows, token: found.nextPageToken };
    },
    [search],
  );
  const close = () => setDialog(undefined);
  return (
    <section class="page" aria-labelledby="agents-title">
      <header class="page-head">
        <h1 id="agents-title">Agents</h1>
        <Filter label="Search agents by name" value={search} onChange={setSearch} />
        <button type="button" onClick={() => setDialog({ kind: "import" })}>
          Import
        </button>
        <button type="button" class="primary" onClick={() => setDialog({ kind: "create" })}>
          New agent
        </button>
      </header>
      <Listing pages={pages} of="Agents" class="agents" empty={<NoAgents search={search} />}>
        {(row) => <AgentRow key={row.agent.id} row={row} onOpen={(kind) => setDialog({ kind, row })} />}
      </Listing>
      {dialog?.kind === "create" && <CreateAgent onClose={close} />}
      {dialog?.kind === "import" && <ImportAgent onClose={close} onImported={() => void pages.reload()} />}
      {dialog?.kind === "export" && <ExportAgent agent={dialog.row.agent} onClose={close} />}
      {dialog?.kind === "delete" && <DeleteAgent row={dialog.row} onClose={close} onDeleted={pages.reload} />}
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

interface DeleteAgentProps {
  row: Listed;
  onClose: () => void;
  onDeleted: () => Promise<void>;
}

function DeleteAgent({ row: { agent, memory }, onClose, onDeleted }: DeleteAgentProps) {
  const own = (memory?.blocks ?? []).filter((block) => block.createdForAgentId === agent.id);
  const others = (memory?.blocks ?? []).filter((block) => block.createdForAgentId !== agent.id);
  const labels = (held: typeof own) => held.map((block) => block.label).join(", ");
  const remove = async (requestId: string) => {
    await agents.deleteAgent({ requestId, agentId: agent.id });
    await onDeleted();
  };
  return (
    <FormDialog title={`Delete ${agent.name}?`} submit="Delete agent" isDanger send={remove} onClose={onClose}>
      <p>This cannot be undone. It deletes in every service:</p>
      <ul>
        <li>the agent, all its conversations and every message, and its place in groups;</li>
        {own.length > 0 && <li>its blocks {labels(own)}, unless another agent holds them;</li>}
        <li>the archive that its first passage created, unless another agent holds it;</li>
        <li>its sleep-time partners, if it has any.</li>
      </ul>
      <p>
        {others.length > 0 && `Kept are the blocks ${labels(others)}, which existed before. `}
        Tools and folders are kept.
      </p>
    </FormDialog>
  );
}
