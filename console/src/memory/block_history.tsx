// Who else holds a block, and its revisions with what they changed.

import type { Agent } from "../../gen/mnemesh/agents/v1/agents_pb";
import { type Author, type Block, BlockOperation, type BlockRevision } from "../../gen/mnemesh/blocks/v1/blocks_pb";
import { SortOrder } from "../../gen/mnemesh/types/v1/paging_pb";
import { agents, blocks, newRequestId } from "../api";
import { words } from "../format";
import { Busy, ProblemBox, Time, useAction, useLoad } from "../parts";
import { linkTo } from "../route";

const REVISIONS = 20;

interface HistoryProps {
  agent: Agent;
  block: Block;
  onChange: () => Promise<void>;
}

/** Who else holds a block, and its revisions with what they changed. */
export function BlockHistory({ agent, block, onChange }: HistoryProps) {
  const action = useAction();
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const listed = { blockId: block.id, includeDiff: true, pageSize: REVISIONS, order: SortOrder.DESCENDING };
      const [{ revisions }, { agentIds }] = await Promise.all([
        blocks.listBlockRevisions(listed, { signal }),
        blocks.listBlockAgents({ blockId: block.id, pageSize: 50 }, { signal }),
      ]);
      const others = agentIds.filter((id) => id !== agent.id);
      const held = others.length ? await agents.listAgents({ filter: { agentIds: others } }, { signal }) : undefined;
      return { revisions, holders: held?.agents ?? [] };
    },
    [block.id, block.revision],
  );
  const restore = (revision: bigint) =>
    action.run(async () => {
      const target = { case: "revision" as const, value: revision };
      const author = { author: { case: "owner" as const, value: {} } };
      const requestId = newRequestId();
      await blocks.revertBlock({ requestId, blockId: block.id, author, target, baseRevision: block.revision });
      await onChange();
    });
  if (!value) {
    return problem ? <ProblemBox problem={problem} retry={reload} /> : <Busy what="Loading the history" />;
  }
  return (
    <div class="stack">
      <p>
        {value.holders.length === 0 && <span class="muted">No other agent holds this block.</span>}
        {value.holders.length > 0 && "Also held by "}
        {value.holders.map((holder, index) => (
          <span key={holder.id}>
            {index > 0 && ", "}
            <a href={linkTo(holder.id, "memory")}>{holder.name}</a>
          </span>
        ))}
      </p>
      <ProblemBox problem={action.problem} />
      <ol class="revisions">
        {value.revisions.map((revision) => (
          <li key={String(revision.revision)}>
            <div class="buttons">
              <strong>Revision {String(revision.revision)}</strong>
              <span class="muted">
                {words(BlockOperation[revision.operation])} by {authorOf(revision.author, agent)},{" "}
                <Time at={revision.createTime} />
              </span>
              <span class="spacer" />
              {revision.revision !== block.revision && (
                <button
                  type="button"
                  disabled={action.busy || revision.value === block.value}
                  onClick={() => void restore(revision.revision)}
                >
                  Restore
                </button>
              )}
            </div>
            <Diff revision={revision} />
          </li>
        ))}
      </ol>
    </div>
  );
}

function authorOf(author: Author | undefined, agent: Agent): string {
  switch (author?.author.case) {
    case "agent":
      return author.author.value.agentId === agent.id ? "the agent" : author.author.value.agentId;
    case "owner":
      return "an owner";
    default:
      return "the mesh";
  }
}

function Diff({ revision }: { revision: BlockRevision }) {
  const lines = (revision.diff ?? "").split("\n").filter((line) => line && !/^(---|\+\+\+|@@)/.test(line));
  if (lines.length === 0) {
    return null;
  }
  return (
    <pre class="code diff">
      {lines.map((line, index) => (
        <span key={index} class={line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : ""}>
          {`${line}\n`}
        </span>
      ))}
    </pre>
  );
}
