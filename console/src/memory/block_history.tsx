// Who else holds a block, and its revisions with what they changed.

import type { Agent } from "../../gen/mnemesh/agents/v1/agents_pb";
import { type Author, type Block, BlockOperation, type BlockRevision } from "../../gen/mnemesh/blocks/v1/blocks_pb";
import { SortOrder } from "../../gen/mnemesh/types/v1/paging_pb";
import { newRequestId } from "../api";
import { agents } from "../clients/agents";
import { blocks } from "../clients/memory";
import { words } from "../format";
import { Holders } from "../list";
import { Busy, ProblemBox, Time, useAction, useLoad } from "../parts";

const REVISIONS = 20;
const MOST_HOLDERS = 200;

interface HistoryProps {
  agent: Agent;
  block: Block;
  onChange: () => Promise<void>;
}

/** The revisions of a block with what they changed. */
export function BlockHistory({ agent, block, onChange }: HistoryProps) {
  const action = useAction();
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const listed = { blockId: block.id, includeDiff: true, pageSize: REVISIONS, order: SortOrder.DESCENDING };
      return (await blocks.listBlockRevisions(listed, { signal })).revisions;
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
      <ProblemBox problem={action.problem} />
      <ol class="revisions">
        {value.map((revision) => (
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

/** The agents that hold a block: each sees what the others write. */
export function BlockHolders({ block, onChange }: Omit<HistoryProps, "agent">) {
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const { agentIds } = await blocks.listBlockAgents({ blockId: block.id, pageSize: MOST_HOLDERS }, { signal });
      const filter = { agentIds };
      return agentIds.length ? (await agents.listAgents({ filter, pageSize: MOST_HOLDERS }, { signal })).agents : [];
    },
    [block.id],
  );
  const key = { case: "blockId" as const, value: block.id };
  return (
    <Holders
      of="block"
      panel="memory"
      holders={value}
      problem={problem}
      reload={async () => void (await Promise.all([reload(), onChange()]))}
      words={{ give: "Share", take: "Detach" }}
      give={(requestId, agentId) => blocks.attachBlock({ requestId, agentId, blockId: block.id })}
      take={(requestId, agentId) => blocks.detachBlock({ requestId, agentId, block: key })}
      note={({ model }) => <span class="mono">{model}</span>}
    />
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
