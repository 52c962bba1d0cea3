// One group: its graph, its conversation, and who speaks now.

import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Agent } from "../gen/mnemesh/agents/v1/agents_pb";
import type { Group } from "../gen/mnemesh/agents/v1/groups_pb";
import { OnBusy, type Run, type RunError, type RunEvent } from "../gen/mnemesh/agents/v1/runs_pb";
import { ContentPartSchema } from "../gen/mnemesh/types/v1/message_pb";
import { SortOrder } from "../gen/mnemesh/types/v1/paging_pb";
import { create } from "@bufbuild/protobuf";
import { newRequestId, type Problem, problemOf, problemOfRun } from "./api";
import { agents, groups, runs } from "./clients/agents";
import { follow, start } from "./chat/follow";
import { FormDialog } from "./dialog";
import { count, textOf, words } from "./format";
import { Graph, type GraphEdge, type GraphNode } from "./graph";
import { GroupForm } from "./group_form";
import { KINDS, kindOf, managerOf, nameOf } from "./groups";
import { ItemHead } from "./list";
import { Busy, Empty, ProblemBox, useAction, useInterval, useLoad } from "./parts";
import { linkTo, linkToSection } from "./route";

const ACTIVE_MS = 2_000;
const EARLIER_RUNS = 10;

export function GroupPage({ groupId }: { groupId: string }) {
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const group = (await groups.getGroup({ groupId }, { signal })).group!;
      const agentIds = [...new Set([managerOf(group), ...group.agentIds])].filter(Boolean);
      const found = agentIds.length ? await agents.listAgents({ filter: { agentIds }, pageSize: 200 }, { signal }) : undefined;
      return { group, names: new Map((found?.agents ?? []).map((agent: Agent) => [agent.id, agent.name])) };
    },
    [groupId],
  );
  return (
    <section class="page" aria-labelledby="group-name">
      <ProblemBox problem={problem} retry={reload} list="groups" />
      {!value && !problem && <Busy what="Loading the group" />}
      {value && <GroupView group={value.group} names={value.names} onChange={reload} />}
    </section>
  );
}

/** One turn of a member, or a selection by the manager. */
interface Turn {
  key: string;
  agentId: string;
  name: string;
  isSelection: boolean;
  text: string;
  tools: string[];
  isOver: boolean;
  problem?: Problem;
}

/** A run of the group: the words that came in, and the turns. */
interface Exchange {
  /** The id of the run, or of the request that started it from this page. */
  key: string;
  /** Empty until the run is accepted. */
  runId: string;
  /** The mesh did not answer yet. */
  isUnsent?: boolean;
  asked: string;
  turns: Turn[];
  isOver: boolean;
  problem?: Problem;
}

/** The runs of a group in the page. Each is followed to its end, also the stored ones: their events are durable. */
class Discussion {
  readonly exchanges = signal<Exchange[]>([]);
  readonly isLost = signal(false);
  readonly problem = signal<Problem | undefined>(undefined);
  private readonly closing = new AbortController();
  private loading: Promise<void> | undefined;

  constructor(private readonly groupId: string) {}

  /** Loads the earlier runs. A message that is sent meanwhile is shown after them. */
  load(): Promise<void> {
    return (this.loading = this.loadEarlier());
  }

  private async loadEarlier(): Promise<void> {
    try {
      const filter = { groupId: this.groupId };
      const order = SortOrder.DESCENDING;
      const found = await runs.listRuns({ filter, pageSize: 100, order }, { signal: this.closing.signal });
      const own = found.runs.filter((run) => !run.parentRunId && run.input.length > 0).slice(0, EARLIER_RUNS);
      const earlier = own.reverse().map((run) => {
        const asked = askedIn(run);
        return { key: run.id, runId: run.id, asked, turns: [], isOver: false };
      });
      this.exchanges.value = [...earlier, ...this.exchanges.value];
      for (const { runId } of earlier) {
        void this.followInto(runId, { runId });
      }
    } catch (error) {
      this.report(error);
    }
  }

  /** Shows a message, and sends it. It waits while the mesh does not answer. */
  async send(text: string): Promise<void> {
    const key = newRequestId();
    const content = [create(ContentPartSchema, { part: { case: "text", value: { text } } })];
    const config = { streamTokens: true, onBusy: OnBusy.WAIT };
    const request = { requestId: key, groupId: this.groupId, messages: [{ content }], config };
    this.exchanges.value = [...this.exchanges.value, { key, runId: "", asked: text, turns: [], isOver: false }];
    try {
      const onWait = () => this.change(key, (exchange) => ({ ...exchange, isUnsent: true }));
      await this.loading;
      const runId = await start(request, { signal: this.closing.signal, onWait });
      this.change(key, (exchange) => ({ ...exchange, runId, isUnsent: false }));
      await this.followInto(key, { runId });
    } catch (error) {
      if (!this.closing.signal.aborted) {
        this.change(key, (exchange) => ({ ...exchange, isOver: true, isUnsent: false, problem: problemOf(error) }));
      }
    }
  }

  close(): void {
    this.closing.abort();
  }

  private async followInto(key: string, source: Pick<Parameters<typeof follow>[0], "open" | "runId">): Promise<void> {
    const signal = this.closing.signal;
    try {
      for await (const event of follow({ ...source, signal, onLost: (isLost) => (this.isLost.value = isLost) })) {
        this.change(key, (exchange) => withEvent({ ...exchange, runId: event.runId }, event));
      }
      this.change(key, (exchange) => ({ ...exchange, isOver: true }));
    } catch (error) {
      if (!signal.aborted) {
        this.change(key, (exchange) => ({ ...exchange, isOver: true, problem: problemOf(error) }));
      }
    }
  }

  private change(key: string, changed: (exchange: Exchange) => Exchange): void {
    this.exchanges.value = this.exchanges.value.map((each) => (each.key === key ? changed(each) : each));
  }

  private report(error: unknown): void {
    if (!this.closing.signal.aborted) {
      this.problem.value = problemOf(error);
    }
  }
}

function askedIn(run: Run): string {
  return run.input.map(({ content }) => textOf(content)).join("\n");
}

function withEvent(exchange: Exchange, { agentId = "", event }: RunEvent): Exchange {
  const { turns } = exchange;
  const open = turns.findLast((turn) => !turn.isOver && (!agentId || turn.agentId === agentId));
  const replace = (changed: Partial<Turn>) => ({
    ...exchange,
    turns: turns.map((turn) => (turn === open ? { ...turn, ...changed } : turn)),
  });
  switch (event.case) {
    case "memberTurnStarted": {
      const { number, agentName, isSelection } = event.value;
      const turn = { key: `${number} ${agentId} ${isSelection}`, agentId, name: agentName, isSelection };
      return { ...exchange, turns: [...turns, { ...turn, text: "", tools: [], isOver: false }] };
    }
    case "memberTurnEnded":
      return replace({ isOver: true, problem: problemIn(event.value.error) });
    case "delta":
      return event.value.delta.case === "assistantText" && open
        ? replace({ text: open.text + event.value.delta.value })
        : exchange;
    case "message":
      return open ? replace(saidIn(event.value.message, open)) : exchange;
    case "error":
      return { ...exchange, problem: problemOfRun(event.value.error) };
    case "stop":
      return { ...exchange, isOver: true, turns: turns.map((turn) => ({ ...turn, isOver: true })) };
    default:
      return exchange;
  }
}

function problemIn(error: RunError | undefined): Problem | undefined {
  return error && problemOfRun(error);
}

type Spoken = Extract<RunEvent["event"], { case: "message" }>["value"]["message"];

/** The stored words of a turn replace those that were streamed. */
function saidIn(message: Spoken, turn: Turn): Partial<Turn> {
  switch (message.case) {
    case "assistant":
      return { text: textOf(message.value.content) };
    case "toolCall":
      return { tools: [...turn.tools, ...message.value.toolCalls.map(({ name }) => name)] };
    default:
      return {};
  }
}

interface GroupViewProps {
  group: Group;
  names: Map<string, string>;
  onChange: () => Promise<void>;
}

function GroupView({ group, names, onChange }: GroupViewProps) {
  const [discussion] = useState(() => new Discussion(group.id));
  const [dialog, setDialog] = useState<"edit" | "delete">();
  const remove = async (requestId: string) => {
    await groups.deleteGroup({ requestId, groupId: group.id });
    location.hash = linkToSection("groups");
  };
  useEffect(() => {
    void discussion.load();
    return () => discussion.close();
  }, []);
  const working = useWorking(group.id);
  const exchanges = discussion.exchanges.value;
  const latest = exchanges.at(-1);
  const speaking = new Set([
    ...working,
    ...(latest?.turns.filter((turn) => !turn.isOver).map((turn) => turn.agentId) ?? []),
  ]);
  const kind = kindOf(group);
  return (
    <>
      <ItemHead
        section="groups"
        back="All groups"
        id="group-name"
        name={nameOf(group)}
        about={<span class="tag">{KINDS[kind].title}</span>}
      >
        {kind !== "swarm" && (
          <button type="button" onClick={() => setDialog("edit")}>
            Edit
          </button>
        )}
        <button type="button" class="danger" onClick={() => setDialog("delete")}>
          Delete
        </button>
      </ItemHead>
      <p class="muted">{KINDS[kind].says}</p>
      <Graph
        nodes={nodesOf(group, names, speaking, latest)}
        edges={edgesOf(group)}
        label={`The graph of ${nameOf(group)}`}
      />
      <section class="stack" aria-labelledby="said-title">
        <h2 id="said-title">Who speaks</h2>
        <ProblemBox problem={discussion.problem.value} />
        {discussion.isLost.value && <Busy what="The connection is lost. The run continues, and the page asks again." />}
        {exchanges.length === 0 && kind !== "swarm" && (
          <Empty title="Nothing was said yet. Send the group its first message." />
        )}
        {exchanges.map((exchange) => (
          <ExchangeView key={exchange.key} exchange={exchange} managerName={names.get(managerOf(group)) ?? "Manager"} />
        ))}
        {kind !== "swarm" && <Composer group={group} onSend={(text) => discussion.send(text)} />}
      </section>
      {dialog === "edit" && <GroupForm group={group} onClose={() => setDialog(undefined)} onSaved={onChange} />}
      {dialog === "delete" && (
        <FormDialog
          title={`Delete ${nameOf(group)}?`}
          submit="Delete group"
          isDanger
          send={remove}
          onClose={() => setDialog(undefined)}
        >
          <p>The agents, their messages and the records of their runs are kept. Runs of the group are cancelled.</p>
        </FormDialog>
      )}
    </>
  );
}

/** The agents that work in runs of the group now, also those that no message of this page started. */
function useWorking(groupId: string): string[] {
  const { value, reload } = useLoad(
    async (signal) => {
      const found = await runs.listRuns({ filter: { groupId, active: true }, pageSize: 100 }, { signal });
      return found.runs.flatMap((run) => (run.agentId ? [run.agentId] : []));
    },
    [groupId],
  );
  useInterval(reload, ACTIVE_MS);
  return value ?? [];
}

function nodesOf(group: Group, names: Map<string, string>, speaking: Set<string>, latest: Exchange | undefined): GraphNode[] {
  const manager = managerOf(group);
  const node = (id: string, isManager: boolean): GraphNode => {
    const turns = latest?.turns.filter((turn) => turn.agentId === id && !turn.isSelection).length ?? 0;
    return {
      id,
      name: names.get(id) ?? "deleted agent",
      note: turns ? count(turns, "turn") : "",
      isManager,
      isSpeaking: speaking.has(id),
    };
  };
  return [...(manager ? [node(manager, true)] : []), ...group.agentIds.map((id) => node(id, false))];
}

function edgesOf(group: Group): GraphEdge[] {
  const manager = managerOf(group);
  const members = group.agentIds;
  switch (kindOf(group)) {
    case "roundRobin":
      return members.length < 2
        ? []
        : members.map((from, index) => ({ from, to: members[(index + 1) % members.length]!, isQuiet: false }));
    case "supervisor":
      return members.flatMap((member) => [
        { from: manager, to: member, isQuiet: false },
        { from: member, to: manager, isQuiet: false },
      ]);
    case "swarm":
      return [];
    default:
      return members.map((to) => ({ from: manager, to, isQuiet: true }));
  }
}

function ExchangeView({ exchange, managerName }: { exchange: Exchange; managerName: string }) {
  const action = useAction();
  const cancel = () =>
    action.run(async () => {
      const target = { case: "runs" as const, value: { runIds: [exchange.runId] } };
      await runs.cancelRuns({ requestId: newRequestId(), target });
    });
  return (
    <div class="exchange">
      <article class="said user" aria-label="You">
        <p class="text">{exchange.asked}</p>
      </article>
      <ol class="turns">
        {exchange.turns.map((turn) => (
          <li key={turn.key} class={turn.isSelection ? "turn muted" : "turn"}>
            <a class="turn-name" href={linkTo(turn.agentId)}>
              {turn.name || managerName}
            </a>
            <div class="stack tight">
              {turn.isSelection && <span>selects who speaks next</span>}
              {turn.tools.length > 0 && <span class="muted">called {turn.tools.map(words).join(", ")}</span>}
              {turn.text && <p class="text">{turn.text}</p>}
              {!turn.isOver && <Busy what={turn.text ? "speaks" : "thinks"} />}
              <ProblemBox problem={turn.problem} />
            </div>
          </li>
        ))}
      </ol>
      {!exchange.isOver && exchange.turns.length === 0 && (
        <Busy what={exchange.isUnsent ? "Not sent yet: the mesh does not answer. It is tried again" : "The run begins"} />
      )}
      {!exchange.isOver && exchange.runId && (
        <button type="button" class="start" disabled={action.busy} onClick={() => void cancel()}>
          Cancel the run
        </button>
      )}
      <ProblemBox problem={exchange.problem ?? action.problem} />
    </div>
  );
}

function Composer({ group, onSend }: { group: Group; onSend: (text: string) => Promise<void> }) {
  const [text, setText] = useState("");
  const form = useRef<HTMLFormElement>(null);
  const send = (event: Event) => {
    event.preventDefault();
    if (text.trim()) {
      void onSend(text.trim());
      setText("");
    }
  };
  return (
    <form class="composer" ref={form} onSubmit={send}>
      <textarea
        rows={2}
        aria-label={`Message to ${nameOf(group)}`}
        placeholder={`Message to ${nameOf(group)}`}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            form.current?.requestSubmit();
          }
        }}
      />
      <div class="composer-foot">
        <span class="muted">Enter sends</span>
        <button type="submit" class="primary" disabled={!text.trim()}>
          Send
        </button>
      </div>
    </form>
  );
}
