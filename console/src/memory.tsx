// The panel Memory: blocks edited in place, with their history; search of passages and of messages.

import { create } from "@bufbuild/protobuf";
import { useState } from "preact/hooks";
import type { Agent } from "../gen/mnemesh/agents/v1/agents_pb";
import type { PassageHit } from "../gen/mnemesh/archival/v1/passages_service_pb";
import { type Author, type Block, BlockOperation, type BlockRevision } from "../gen/mnemesh/blocks/v1/blocks_pb";
import { UpdateBlockRequestSchema } from "../gen/mnemesh/blocks/v1/blocks_service_pb";
import type { MessageHit } from "../gen/mnemesh/recall/v1/messages_service_pb";
import { Role } from "../gen/mnemesh/types/v1/message_pb";
import { SortOrder } from "../gen/mnemesh/types/v1/paging_pb";
import { agents, blocks, messages, newRequestId, passages } from "./api";
import { number, words } from "./format";
import { Busy, Dialog, Empty, Field, ProblemBox, Time, useAction, useLoad } from "./parts";
import { linkTo } from "./route";

const HITS = 20;
const REVISIONS = 20;

export function Memory({ agent }: { agent: Agent }) {
  return (
    <div class="panel">
      <div class="page">
        <Blocks agent={agent} />
        <Passages agent={agent} />
        <Messages agent={agent} />
      </div>
    </div>
  );
}

function Blocks({ agent }: { agent: Agent }) {
  const [isAdding, setAdding] = useState(false);
  const { value, problem, reload } = useLoad(
    async (signal) => (await blocks.getCoreMemory({ agentId: agent.id }, { signal })).coreMemory!,
    [agent.id],
  );
  return (
    <section class="stack" aria-labelledby="blocks-title">
      <header class="page-head">
        <h2 id="blocks-title">Core memory</h2>
        <button type="button" onClick={() => void reload()}>
          Refresh
        </button>
        <button type="button" onClick={() => setAdding(true)}>
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
          <BlockView key={`${block.id}/${block.revision}`} agent={agent} block={block} onChange={reload} />
        ))}
      </div>
      {isAdding && <AddBlock agent={agent} onClose={() => setAdding(false)} onAdded={reload} />}
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
  const [isOpen, setOpen] = useState(false);
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
  return (
    <article class="card block" aria-label={`Block ${block.label}`}>
      <header>
        <h3 class="block-label">{block.label}</h3>
        {block.readOnly && <span class="tag">read-only for agents</span>}
        <span class={length > limit ? "figure is-bad" : "figure muted"}>
          {number(length)} / {number(limit)}
        </span>
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
        <label class="inline">
          <input
            type="checkbox"
            checked={readOnly}
            onChange={(event) => setReadOnly(event.currentTarget.checked)}
          />
          Agents may not edit it
        </label>
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
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary class="muted">
          Revision {String(block.revision)}, <Time at={block.updateTime} />
        </summary>
        {isOpen && <History agent={agent} block={block} onChange={onChange} />}
      </details>
    </article>
  );
}

/** Who else holds a block, and its revisions with what they changed. */
function History({ agent, block, onChange }: BlockProps) {
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

interface AddBlockProps {
  agent: Agent;
  onClose: () => void;
  onAdded: () => Promise<void>;
}

function AddBlock({ agent, onClose, onAdded }: AddBlockProps) {
  const [requestId] = useState(newRequestId);
  const [label, setLabel] = useState("");
  const [value, setValue] = useState("");
  const action = useAction();
  const add = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      const block = { label: label.trim(), value };
      await blocks.createBlock({ requestId, block, agentIds: [agent.id], createdForAgentId: agent.id });
      onClose();
      await onAdded();
    });
  };
  return (
    <Dialog title="Add a block" onClose={onClose}>
      <form onSubmit={add}>
        <Field label="Label" hint="Unique among the blocks of the agent.">
          {(id) => (
            <input id={id} required autoFocus value={label} onInput={(event) => setLabel(event.currentTarget.value)} />
          )}
        </Field>
        <Field label="Text">
          {(id) => (
            <textarea id={id} rows={4} value={value} onInput={(event) => setValue(event.currentTarget.value)} />
          )}
        </Field>
        <ProblemBox problem={action.problem} />
        <footer class="dialog-foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={action.busy}>
            Add block
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

interface SearchBoxProps {
  label: string;
  onSearch: (query: string) => void;
}

function SearchBox({ label, onSearch }: SearchBoxProps) {
  const [query, setQuery] = useState("");
  return (
    <form class="search" role="search" aria-label={label} onSubmit={(event) => (event.preventDefault(), onSearch(query.trim()))}>
      <input
        type="search"
        aria-label={label}
        placeholder={label}
        value={query}
        onInput={(event) => setQuery(event.currentTarget.value)}
      />
      <button type="submit">Search</button>
    </form>
  );
}

function Passages({ agent }: { agent: Agent }) {
  const [query, setQuery] = useState("");
  const [text, setText] = useState("");
  const action = useAction();
  const { value, problem, reload } = useLoad(
    (signal) => passages.searchPassages({ query, limit: HITS, filter: { agentId: agent.id } }, { signal }),
    [agent.id, query],
  );
  const insert = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      const target = { case: "agentId" as const, value: agent.id };
      await passages.insertPassages({ requestId: newRequestId(), target, passages: [{ text }] });
      setText("");
      await reload();
    });
  };
  const remove = (passageId: string) =>
    action.run(async () => {
      await passages.deletePassage({ requestId: newRequestId(), passageId });
      await reload();
    });
  return (
    <section class="stack" aria-labelledby="passages-title">
      <header class="page-head">
        <h2 id="passages-title">Archival memory</h2>
        <SearchBox label="Search passages" onSearch={setQuery} />
      </header>
      <ProblemBox problem={problem ?? action.problem} retry={problem && reload} />
      {value?.degraded && <p class="muted">The search by meaning is not available now. These are hits by words.</p>}
      {value?.hits.length === 0 &&
        (query ? (
          <Empty title={`No passage matches “${query}”.`} />
        ) : (
          <Empty title="The archives are empty. The agent stores passages with its tools; you can add one below." />
        ))}
      <ol class="hits">
        {value?.hits.map((hit) => (
          <li key={hit.passage!.id} class="card hit">
            <p class="text">
              <Highlighted text={hit.passage!.text} query={query} />
            </p>
            <div class="buttons">
              <Score hit={hit} isShown={query !== ""} />
              <span class="muted">
                <Time at={hit.passage!.createTime} />
              </span>
              {hit.passage!.tags.map((tag) => (
                <span key={tag} class="tag">
                  {tag}
                </span>
              ))}
              {hit.passage!.fileName && <span class="tag">{hit.passage!.fileName}</span>}
              <span class="spacer" />
              <button
                type="button"
                class="quiet danger"
                disabled={action.busy}
                onClick={() => void remove(hit.passage!.id)}
              >
                Delete
              </button>
            </div>
          </li>
        ))}
      </ol>
      <form class="search" onSubmit={insert}>
        <input
          aria-label="Text of a new passage"
          placeholder="Text of a new passage"
          required
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <button type="submit" disabled={action.busy || !text.trim()}>
          Add passage
        </button>
      </form>
    </section>
  );
}

function Messages({ agent }: { agent: Agent }) {
  const [query, setQuery] = useState("");
  const { value, problem, reload } = useLoad(
    async (signal) => (query ? messages.searchMessages({ query, limit: HITS, agentId: agent.id }, { signal }) : undefined),
    [agent.id, query],
  );
  return (
    <section class="stack" aria-labelledby="recall-title">
      <header class="page-head">
        <h2 id="recall-title">Recall memory</h2>
        <SearchBox label="Search messages" onSearch={setQuery} />
      </header>
      <ProblemBox problem={problem} retry={reload} />
      {!query && <p class="muted">Every message of the agent is kept. Search them by words and by meaning.</p>}
      {query && !value && !problem && <Busy what="Searching" />}
      {value?.degraded && <p class="muted">The search by meaning is not available now. These are hits by words.</p>}
      {value?.hits.length === 0 && <Empty title={`No message matches “${query}”.`} />}
      <ol class="hits">
        {value?.hits.map((hit) => (
          <li key={hit.message!.id} class="card hit">
            <p class="text">
              <Highlighted text={hit.text} query={query} />
            </p>
            <div class="buttons">
              <Score hit={hit} isShown />
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

/** The score of a hit, with what it was computed from. */
function Score({ hit, isShown }: { hit: PassageHit | MessageHit; isShown: boolean }) {
  if (!isShown) {
    return null;
  }
  const parts = [
    ["words", hit.textScore, hit.textRank],
    ["meaning", hit.vectorScore, hit.vectorRank],
    ["reranker", hit.rerankScore, undefined],
  ] as const;
  return (
    <>
      <strong class="figure">{hit.score.toFixed(3)}</strong>
      {parts.map(([name, score, rank]) =>
        score === undefined ? null : (
          <span key={name} class="muted">
            {name} {score.toFixed(3)}
            {rank !== undefined && ` (rank ${rank})`}
          </span>
        ),
      )}
    </>
  );
}

/** A text with the words of the query marked. */
function Highlighted({ text, query }: { text: string; query: string }) {
  const wanted = query.match(/[\p{L}\p{N}]{2,}/gu) ?? [];
  if (wanted.length === 0) {
    return <>{text}</>;
  }
  const parts = text.split(new RegExp(`(${wanted.join("|")})`, "giu"));
  return <>{parts.map((part, index) => (index % 2 ? <mark key={index}>{part}</mark> : part))}</>;
}
