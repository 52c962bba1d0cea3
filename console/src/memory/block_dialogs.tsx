// Dialogs of blocks: a new one, one that exists, and how one is given up.

import { useState } from "preact/hooks";
import type { Agent } from "../../gen/mnemesh/agents/v1/agents_pb";
import type { Block } from "../../gen/mnemesh/blocks/v1/blocks_pb";
import { BlockOrderBy } from "../../gen/mnemesh/blocks/v1/blocks_service_pb";
import { SortOrder } from "../../gen/mnemesh/types/v1/paging_pb";
import { newRequestId } from "../api";
import { agents } from "../clients/agents";
import { blocks } from "../clients/memory";
import { count } from "../format";
import { Dialog, FormDialog } from "../dialog";
import { Busy, Empty, ProblemBox, TextField, Time, useAction, useLoad } from "../parts";
import { SearchBox } from "./search";

/** How many blocks the dialog lists; a search finds others. */
const OFFERED = 100;

interface AddBlockProps {
  agent: Agent;
  onClose: () => void;
  onAdded: () => Promise<void>;
}

export function AddBlock({ agent, onClose, onAdded }: AddBlockProps) {
  const [label, setLabel] = useState("");
  const [value, setValue] = useState("");
  const add = async (requestId: string) => {
    const block = { label: label.trim(), value };
    await blocks.createBlock({ requestId, block, agentIds: [agent.id], createdForAgentId: agent.id });
    await onAdded();
  };
  return (
    <FormDialog title="Add a block" submit="Add block" send={add} onClose={onClose}>
      <TextField label="Label" hint="Unique among the blocks of the agent." required autoFocus value={label} onChange={setLabel} />
      <TextField label="Text" rows={4} value={value} onChange={setValue} />
    </FormDialog>
  );
}

interface AttachBlockProps {
  agent: Agent;
  /** The blocks that the agent holds. */
  held: Block[];
  onClose: () => void;
  onAttached: () => Promise<void>;
}

/** Shares a block that exists with the agent: each holder sees the changes of all. */
export function AttachBlock({ agent, held, onClose, onAttached }: AttachBlockProps) {
  const [labelSearch, setLabelSearch] = useState("");
  const action = useAction();
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const filter = labelSearch ? { labelSearch } : {};
      const request = { filter, pageSize: OFFERED, orderBy: BlockOrderBy.UPDATE_TIME, order: SortOrder.DESCENDING };
      return (await blocks.listBlocks(request, { signal })).blocks;
    },
    [labelSearch],
  );
  const ids = new Set(held.map(({ id }) => id));
  const labels = new Set(held.map(({ label }) => label));
  const offered = value?.filter(({ id }) => !ids.has(id));
  const attach = (blockId: string) =>
    action.run(async () => {
      await blocks.attachBlock({ requestId: newRequestId(), agentId: agent.id, blockId });
      onClose();
      await onAttached();
    });
  return (
    <Dialog title="Attach a block" onClose={onClose}>
      <p class="hint">The agent shares the block with those that hold it: each sees what the others write.</p>
      <SearchBox label="Search blocks by label" onSearch={setLabelSearch} />
      <ProblemBox problem={problem ?? action.problem} retry={problem && reload} />
      {!value && !problem && <Busy what="Loading blocks" />}
      {offered?.length === 0 && (
        <Empty title={labelSearch ? `No other block has “${labelSearch}” in its label.` : "There is no other block."} />
      )}
      <ul class="ways">
        {offered?.map((block) => (
          <li key={block.id}>
            <div>
              <strong class="block-label">{block.label}</strong>{" "}
              <span class="muted">
                {count(Array.from(block.value).length, "character")}, <Time at={block.updateTime} />
              </span>
              <p class="choice-text">{block.value || block.description}</p>
            </div>
            <button
              type="button"
              disabled={action.busy || labels.has(block.label)}
              title={labels.has(block.label) ? "The agent holds another block with this label." : undefined}
              aria-label={`Attach ${block.label}`}
              onClick={() => void attach(block.id)}
            >
              Attach
            </button>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}

interface RemoveBlockProps {
  agent: Agent;
  block: Block;
  onClose: () => void;
  onRemoved: () => Promise<void>;
}

/** Detaches a block from the agent, or deletes it for all that hold it. */
export function RemoveBlock({ agent, block, onClose, onRemoved }: RemoveBlockProps) {
  const [requestId] = useState(newRequestId);
  const action = useAction();
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const { agentIds } = await blocks.listBlockAgents({ blockId: block.id, pageSize: 50 }, { signal });
      const others = agentIds.filter((id) => id !== agent.id);
      return others.length ? (await agents.listAgents({ filter: { agentIds: others } }, { signal })).agents : [];
    },
    [block.id],
  );
  const end = (work: () => Promise<unknown>) =>
    action.run(async () => {
      await work();
      onClose();
      await onRemoved();
    });
  const detach = () => blocks.detachBlock({ requestId, agentId: agent.id, block: { case: "blockId", value: block.id } });
  const names = value?.map(({ name }) => name).join(", ");
  return (
    <Dialog title={`Remove ${block.label}?`} onClose={onClose}>
      <ProblemBox problem={problem ?? action.problem} retry={problem && reload} />
      {!value && !problem && <Busy what="Asking who else holds the block" />}
      {value && (
        <ul class="ways">
          <li>
            <p>
              <strong>Detach</strong> takes the block out of this agent's prompt. The block and its history are kept
              {names ? `, also for ${names}` : ", and can be attached again"}.
            </p>
            <button type="button" disabled={action.busy} onClick={() => void end(detach)}>
              Detach
            </button>
          </li>
          <li>
            <p>
              <strong>Delete</strong> erases the block with its history
              {names ? `. ${names} ${value.length === 1 ? "loses" : "lose"} it too` : ""}. This cannot be undone.
            </p>
            <button
              type="button"
              class="primary danger"
              disabled={action.busy}
              onClick={() => void end(() => blocks.deleteBlock({ requestId, blockId: block.id }))}
            >
              Delete
            </button>
          </li>
        </ul>
      )}
    </Dialog>
  );
}
