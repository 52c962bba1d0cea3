// The blocks of an agent, edited in place.

import { create } from "@bufbuild/protobuf";
import { useEffect, useState } from "preact/hooks";
import type { Agent } from "../../gen/mnemesh/agents/v1/agents_pb";
import type { Block } from "../../gen/mnemesh/blocks/v1/blocks_pb";
import { UpdateBlockRequestSchema } from "../../gen/mnemesh/blocks/v1/blocks_service_pb";
import { newRequestId } from "../api";
import { blocks } from "../clients/memory";
import { number } from "../format";
import { Busy, Check, Empty, ProblemBox, Time, useAction, useLoad } from "../parts";
import { AddBlock, AttachBlock, RemoveBlock } from "./block_dialogs";
import { BlockHistory, BlockHolders } from "./block_history";

export function Blocks({ agent }: { agent: Agent }) {
  const [dialog, setDialog] = useState<"add" | "attach">();
  const { value, problem, reload } = useLoad(
    async (signal) => (await blocks.getCoreMemory({ agentId: agent.id }, { signal })).coreMemory!,
    [agent.id],
  );
  const close = () => setDialog(undefined);
  return (
    <section class="stack" aria-labelledby="blocks-title">
      <header class="page-head">
        <h2 id="blocks-title">Core memory</h2>
        <button type="button" onClick={() => void reload()}>
          Refresh
        </button>
        <button type="button" onClick={() => setDialog("attach")}>
          Attach a block
        </button>
        <button type="button" onClick={() => setDialog("add")}>
          Add a block
        </button>
      </header>
      <ProblemBox problem={problem} retry={reload} />
      {!value && !problem && <Busy what="Loading blocks" />}
      {value?.blocks.length === 0 && (
        <Empty title="The agent has no blocks.">
          <p>A block is a labelled text in the agent's prompt, which it edits itself. Add one, such as “human”.</p>
        </Empty>
      )}
      <div class="blocks">
        {value?.blocks.map((block) => (
          <BlockView key={block.id} agent={agent} block={block} onChange={reload} />
        ))}
      </div>
      {dialog === "add" && <AddBlock agent={agent} onClose={close} onAdded={reload} />}
      {dialog === "attach" && (
        <AttachBlock agent={agent} held={value?.blocks ?? []} onClose={close} onAttached={reload} />
      )}
    </section>
  );
}

interface BlockProps {
  agent: Agent;
  block: Block;
  onChange: () => Promise<void>;
}

/** A block with its text, its limit and whether agents may edit it. A change names the revision that was seen. */
function BlockView({ agent, block, onChange }: BlockProps) {
  const [value, setValue] = useState(block.value);
  const [limit, setLimit] = useState(block.limit);
  const [readOnly, setReadOnly] = useState(block.readOnly);
  const [opened, setOpened] = useState({ history: false, holders: false });
  const [isRemoving, setRemoving] = useState(false);
  const action = useAction();
  const paths = [
    ...(value === block.value ? [] : ["value"]),
    ...(limit === block.limit ? [] : ["limit"]),
    ...(readOnly === block.readOnly ? [] : ["read_only"]),
  ];
  const length = Array.from(value).length;
  const save = () =>
    action.run(async () => {
      const request = create(UpdateBlockRequestSchema, {
        requestId: newRequestId(),
        block: { id: block.id, value, limit, readOnly },
        updateMask: { paths },
        baseRevision: block.revision,
      });
      await blocks.updateBlock(request);
      await onChange();
    });
  const reset = () => {
    setValue(block.value);
    setLimit(block.limit);
    setReadOnly(block.readOnly);
  };
  useEffect(reset, [block.revision]);
  return (
    <article class="card block" aria-label={`Block ${block.label}`}>
      <header>
        <h3 class="block-label">{block.label}</h3>
        {block.readOnly && <span class="tag">read-only for agents</span>}
        <span class={length > limit ? "figure is-bad" : "figure muted"}>
          {number(length)} / {number(limit)}
        </span>
        <button
          type="button"
          class="quiet danger"
          aria-label={`Remove ${block.label}`}
          onClick={() => setRemoving(true)}
        >
          Remove
        </button>
      </header>
      {block.description && <p class="hint">{block.description}</p>}
      <textarea
        aria-label={`Text of block ${block.label}`}
        rows={Math.min(12, Math.max(3, value.split("\n").length + 1))}
        value={value}
        onInput={(event) => setValue(event.currentTarget.value)}
      />
      <div class="buttons">
        <label class="inline">
          Limit
          <input
            type="number"
            min={1}
            value={limit}
            onInput={(event) => setLimit(event.currentTarget.valueAsNumber || 0)}
          />
        </label>
        <Check checked={readOnly} onChange={setReadOnly}>
          Agents may not edit it
        </Check>
        <span class="spacer" />
        {paths.length > 0 && (
          <>
            <button type="button" onClick={reset}>
              Discard
            </button>
            <button type="button" class="primary" disabled={action.busy || length > limit} onClick={() => void save()}>
              Save
            </button>
          </>
        )}
      </div>
      <ProblemBox problem={action.problem} />
      {isRemoving && (
        <RemoveBlock agent={agent} block={block} onClose={() => setRemoving(false)} onRemoved={onChange} />
      )}
      <details onToggle={(event) => setOpened({ ...opened, history: event.currentTarget.open })}>
        <summary class="muted">
          Revision {String(block.revision)}, <Time at={block.updateTime} />
        </summary>
        {opened.history && <BlockHistory agent={agent} block={block} onChange={onChange} />}
      </details>
      <details onToggle={(event) => setOpened({ ...opened, holders: event.currentTarget.open })}>
        <summary class="muted">Who holds it</summary>
        {opened.holders && <BlockHolders block={block} onChange={onChange} />}
      </details>
    </article>
  );
}
