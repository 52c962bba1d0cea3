// One agent: its name, its panels, and the conversation that they show.

import { useState } from "preact/hooks";
import type { Conversation } from "../gen/mnemesh/agents/v1/conversations_pb";
import { ConversationOrderBy } from "../gen/mnemesh/agents/v1/conversations_service_pb";
import { newRequestId } from "./api";
import { agents, conversations } from "./clients/agents";
import { Chat } from "./chat/chat";
import { Context } from "./context/context";
import { ago } from "./format";
import { Memory } from "./memory/memory";
import { Busy, ProblemBox, useAction, useLoad } from "./parts";
import { linkTo, PANELS, type Panel, route } from "./route";
import { Runs } from "./runs/runs";
import { Settings } from "./settings";

const TITLES: Record<Panel, string> = { chat: "Chat", context: "Context", memory: "Memory", runs: "Runs", settings: "Settings" };

export function AgentPage({ agentId }: { agentId: string }) {
  const { panel, conversationId } = route.value;
  const agent = useLoad(async (signal) => (await agents.getAgent({ agentId }, { signal })).agent!, [agentId]);
  if (!agent.value) {
    return (
      <section class="page">
        {agent.problem ? <ProblemBox problem={agent.problem} retry={agent.reload} list="agents" /> : <Busy what="Loading the agent" />}
      </section>
    );
  }
  const shown = conversationId || agent.value.defaultConversationId;
  const panelProps = { key: shown, agent: agent.value, conversationId: shown };
  return (
    <section class="agent-page" aria-labelledby="agent-name">
      <header class="agent-head">
        <div class="agent-title">
          <h1 id="agent-name" title={agent.value.name}>
            {agent.value.name}
          </h1>
          <span class="agent-model">{agent.value.model}</span>
        </div>
        <nav class="tabs" aria-label="Panels of the agent">
          {PANELS.map((name) => (
            <a
              key={name}
              href={linkTo(agentId, name, conversationId)}
              aria-current={name === panel ? "page" : undefined}
            >
              {TITLES[name]}
            </a>
          ))}
        </nav>
        {CONVERSATION_PANELS.includes(panel) && <Conversations agentId={agentId} panel={panel} shown={shown} />}
      </header>
      {panel === "chat" && <Chat {...panelProps} />}
      {panel === "context" && <Context {...panelProps} />}
      {panel === "memory" && <Memory agent={agent.value} />}
      {panel === "runs" && <Runs agent={agent.value} />}
      {panel === "settings" && <Settings agent={agent.value} onChange={agent.reload} />}
    </section>
  );
}

const CONVERSATION_PANELS: Panel[] = ["chat", "context"];

/** Selects the conversation of a panel, and creates further ones. */
function Conversations({ agentId, panel, shown }: { agentId: string; panel: Panel; shown: string }) {
  const action = useAction();
  const [created, setCreated] = useState(0);
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const orderBy = ConversationOrderBy.UPDATE_TIME;
      const found = await conversations.listConversations({ agentId, orderBy, pageSize: 200 }, { signal });
      return found.conversations;
    },
    [agentId, shown, created],
  );
  const add = () =>
    action.run(async () => {
      const request = { requestId: newRequestId(), conversation: { agentId } };
      const { conversation } = await conversations.createConversation(request);
      setCreated(created + 1);
      location.hash = linkTo(agentId, panel, conversation!.id);
    });
  return (
    <div class="conversations">
      <select
        aria-label="Conversation"
        value={shown}
        onChange={(event) => (location.hash = linkTo(agentId, panel, event.currentTarget.value))}
      >
        {(value ?? []).map((each) => (
          <option key={each.id} value={each.id}>
            {title(each)}
          </option>
        ))}
      </select>
      <button type="button" disabled={action.busy} onClick={() => void add()}>
        New conversation
      </button>
      <ProblemBox problem={problem ?? action.problem} retry={problem && reload} />
    </div>
  );
}

function title(conversation: Conversation): string {
  const name = conversation.isDefault
    ? "Default conversation"
    : conversation.summary || conversation.key || `Conversation ${conversation.id.slice(5, 13)}`;
  const time = conversation.lastMessageTime ?? conversation.createTime;
  return time ? `${name}, ${ago(time)}` : name;
}
