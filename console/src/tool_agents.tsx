// The agents that hold a tool: giving it to others, and taking it away.

import { useState } from "preact/hooks";
import type { Tool } from "../gen/mnemesh/tools/v1/tools_pb";
import { agents, newRequestId } from "./api";
import { ProblemBox, useAction, useLoad } from "./parts";
import { linkTo } from "./route";

const PAGE = 200;

export function ToolAgents({ tool }: { tool: Tool }) {
  const [chosen, setChosen] = useState("");
  const action = useAction();
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const [holders, all] = await Promise.all([
        agents.listAgents({ filter: { toolId: tool.id }, pageSize: PAGE }, { signal }),
        agents.listAgents({ pageSize: PAGE }, { signal }),
      ]);
      const held = new Set(holders.agents.map(({ id }) => id));
      return { holders: holders.agents, others: all.agents.filter(({ id }) => !held.has(id)) };
    },
    [tool.id],
  );
  const toolKey = { case: "toolId" as const, value: tool.id };
  const give = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      await agents.attachTool({ requestId: newRequestId(), agentId: chosen, tool: toolKey });
      setChosen("");
      await reload();
    });
  };
  const take = (agentId: string) =>
    action.run(async () => {
      await agents.detachTool({ requestId: newRequestId(), agentId, tool: toolKey });
      await reload();
    });
  return (
    <section class="stack" aria-labelledby="tool-agents-title">
      <header class="page-head">
        <h2 id="tool-agents-title">Agents</h2>
        <form class="search" onSubmit={give}>
          <select
            required
            aria-label="Agent to give the tool to"
            value={chosen}
            onChange={(event) => setChosen(event.currentTarget.value)}
          >
            <option value="">Choose an agent</option>
            {value?.others.map(({ id, name }) => (
              <option key={id} value={id}>
                {name}
              </option>
            ))}
          </select>
          <button type="submit" disabled={action.busy || !chosen}>
            Give it
          </button>
        </form>
      </header>
      <ProblemBox problem={problem ?? action.problem} retry={problem && reload} />
      {value?.holders.length === 0 && <p class="muted">No agent holds this tool.</p>}
      {value && value.holders.length > 0 && (
        <ul class="rows" aria-label="Agents that hold the tool">
          {value.holders.map(({ id, name, model }) => (
            <li class="row" key={id}>
              <a class="row-name" href={linkTo(id)}>
                {name}
              </a>
              <span class="row-text muted mono">{model}</span>
              <span class="row-end">
                <button
                  type="button"
                  class="quiet danger"
                  disabled={action.busy}
                  aria-label={`Take it from ${name}`}
                  onClick={() => void take(id)}
                >
                  Take away
                </button>
              </span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
