// Recall memory: every message of the agent, searched by words and meaning. A hit leads to its turn.

import { useState } from "preact/hooks";
import type { Agent } from "../../gen/mnemesh/agents/v1/agents_pb";
import { Role } from "../../gen/mnemesh/types/v1/message_pb";
import { messages } from "../clients/memory";
import { words } from "../format";
import { Busy, Empty, ProblemBox, Time, useLoad } from "../parts";
import { linkTo } from "../route";
import { ALL_DAYS, DayRange, daysFilter, Highlighted, Score, SearchBox } from "./search";

const HITS = 20;
const ROLES = [Role.USER, Role.ASSISTANT, Role.TOOL];

export function Messages({ agent }: { agent: Agent }) {
  const [query, setQuery] = useState("");
  const [role, setRole] = useState(Role.UNSPECIFIED);
  const [days, setDays] = useState(ALL_DAYS);
  const { value, problem, reload } = useLoad(
    (signal) => {
      const roles = role === Role.UNSPECIFIED ? [] : [role];
      return messages.searchMessages({ query, limit: HITS, agentId: agent.id, roles, ...daysFilter(days) }, { signal });
    },
    [agent.id, query, role, days],
  );
  return (
    <section class="stack" aria-labelledby="recall-title">
      <header class="page-head">
        <h2 id="recall-title">Recall memory</h2>
        <SearchBox label="Search messages" onSearch={setQuery} />
      </header>
      <div class="filters">
        <label class="inline">
          Of
          <select
            aria-label="Author of the messages"
            value={role}
            onChange={(event) => setRole(Number(event.currentTarget.value))}
          >
            <option value={Role.UNSPECIFIED}>everyone</option>
            {ROLES.map((each) => (
              <option key={each} value={each}>
                {words(Role[each])}
              </option>
            ))}
          </select>
        </label>
        <DayRange of="messages" days={days} onChange={setDays} />
      </div>
      <ProblemBox problem={problem} retry={reload} />
      {!value && !problem && <Busy what="Searching" />}
      {!query && value && value.hits.length > 0 && (
        <p class="muted">Every message of the agent is kept. These are the newest; search them by words and by meaning.</p>
      )}
      {value?.degraded && <p class="muted">The search by meaning is not available now. These are hits by words.</p>}
      {value?.hits.length === 0 && (
        <Empty
          title={query ? `No message matches “${query}”.` : "There is no message yet. Send the agent one in the chat."}
        />
      )}
      <ol class="hits">
        {value?.hits.map((hit) => (
          <li key={hit.message!.id} class="card hit">
            <p class="text">
              <Highlighted text={hit.text} query={query} />
            </p>
            <div class="buttons">
              <Score hit={hit} isShown={query !== ""} />
              <span class="muted">
                {words(Role[hit.message!.role])}, <Time at={hit.message!.createTime} />
              </span>
              <span class="spacer" />
              <a href={linkTo(agent.id, "chat", hit.message!.conversationId, hit.message!.id)}>Go to the turn</a>
            </div>
          </li>
        ))}
      </ol>
    </section>
  );
}
