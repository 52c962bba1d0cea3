// Facts and episodes: what the agent holds to be true, on a line of time with what superseded what.

import { useMemo, useState } from "preact/hooks";
import type { Agent } from "../../gen/mnemesh/agents/v1/agents_pb";
import type { Episode, Fact, MemoryScope } from "../../gen/mnemesh/recall/v1/episodes_pb";
import { EpisodeOrderBy, FactOrderBy } from "../../gen/mnemesh/recall/v1/episodes_service_pb";
import { SortOrder } from "../../gen/mnemesh/types/v1/paging_pb";
import { newRequestId } from "../api";
import { episodes } from "../clients/memory";
import { count } from "../format";
import { Busy, Empty, ProblemBox, Time, useAction, useLoad } from "../parts";
import { linkTo } from "../route";
import { AddFact, CorrectFact, ForgetFact, RestoreFact } from "./fact_dialogs";
import { Highlighted, SearchBox } from "./search";
import { Axis, type Chain, chainsOf } from "./time_line";

const PAGE = 200;
const HITS = 50;

export type FactDialog = { kind: "add" } | { kind: "correct" | "forget" | "restore"; fact: Fact };

export function Facts({ agent }: { agent: Agent }) {
  const [query, setQuery] = useState("");
  const [place, setPlace] = useState(`agent/${agent.id}`);
  const [dialog, setDialog] = useState<FactDialog>();
  const scopes = useLoad((signal) => listScopes(agent, signal), [agent.id]);
  const scope = scopes.value?.find((each) => each.key === place)?.scope;
  const { value, problem, reload } = useLoad(
    async (signal) => (scope ? await load(scope, query, signal) : undefined),
    [scope, query],
  );
  const close = () => setDialog(undefined);
  return (
    <section class="stack" aria-labelledby="facts-title">
      <header class="page-head">
        <h2 id="facts-title">Facts and episodes</h2>
        <SearchBox label="Search facts" onSearch={setQuery} />
        <button type="button" onClick={() => setDialog({ kind: "add" })}>
          Add a fact
        </button>
      </header>
      <div class="filters">
        <label class="inline">
          Of
          <select aria-label="Whose facts" value={place} onChange={(event) => setPlace(event.currentTarget.value)}>
            {scopes.value?.map(({ key, title }) => (
              <option key={key} value={key}>
                {title}
              </option>
            ))}
          </select>
        </label>
        <button type="button" onClick={() => void Promise.all([scopes.reload(), reload()])}>
          Refresh
        </button>
      </div>
      <ProblemBox problem={scopes.problem ?? problem} retry={scopes.problem ? scopes.reload : reload} />
      {!value && !problem && !scopes.problem && <Busy what="Loading facts" />}
      {value && <TimeLine agent={agent} query={query} shown={value} onDialog={setDialog} onChange={reload} />}
      {dialog?.kind === "add" && scope && <AddFact scope={scope} onClose={close} onDone={reload} />}
      {dialog?.kind === "correct" && <CorrectFact fact={dialog.fact} onClose={close} onDone={reload} />}
      {dialog?.kind === "forget" && <ForgetFact fact={dialog.fact} onClose={close} onDone={reload} />}
      {dialog?.kind === "restore" && <RestoreFact fact={dialog.fact} onClose={close} onDone={reload} />}
    </section>
  );
}

interface Place {
  key: string;
  title: string;
  scope: MemoryScope["scope"];
}

/** Returns the scopes that have memories, the agent's own one first. */
async function listScopes(agent: Agent, signal: AbortSignal): Promise<Place[]> {
  const own: Place = { key: `agent/${agent.id}`, title: "this agent", scope: { case: "agentId", value: agent.id } };
  const found: Place[] = [own];
  const named = agent.compactionSettings?.memoryScope;
  if (named) {
    found.push({ key: `name/${named}`, title: named, scope: { case: "name", value: named } });
  }
  const { scopes } = await episodes.listMemoryScopes({ pageSize: PAGE }, { signal });
  for (const { scope } of scopes) {
    const { case: kind, value = "" } = scope?.scope ?? {};
    const key = kind === "agentId" ? `agent/${value}` : kind === "name" ? `name/${value}` : `${kind}/${value}`;
    if (scope && !found.some((place) => place.key === key)) {
      found.push({ key, title: kind === "name" ? value : `${KINDS[kind ?? ""] ?? ""} ${value.slice(0, 22)}…`, scope: scope.scope });
    }
  }
  return found;
}

const KINDS: Record<string, string> = {
  agentId: "agent",
  conversationId: "conversation",
  identityId: "person",
  groupId: "group",
};

interface Shown {
  facts: Fact[];
  episodes: Episode[];
  hasMore: boolean;
}

async function load(scope: MemoryScope["scope"], query: string, signal: AbortSignal): Promise<Shown> {
  const scopes = [{ scope }];
  const filter = { scopes, includeInvalid: true };
  if (query) {
    const [facts, found] = await Promise.all([
      episodes.searchFacts({ query, limit: HITS, filter }, { signal }),
      episodes.searchEpisodes({ query, limit: HITS, filter: { scopes } }, { signal }),
    ]);
    return { facts: facts.hits.map((hit) => hit.fact!), episodes: found.hits.map((hit) => hit.episode!), hasMore: false };
  }
  const page = { pageSize: PAGE, order: SortOrder.DESCENDING };
  const [facts, found] = await Promise.all([
    episodes.listFacts({ ...page, orderBy: FactOrderBy.CREATE_TIME, filter }, { signal }),
    episodes.listEpisodes({ ...page, orderBy: EpisodeOrderBy.START_TIME, filter: { scopes } }, { signal }),
  ]);
  return { facts: facts.facts, episodes: found.episodes, hasMore: facts.nextPageToken !== "" || found.nextPageToken !== "" };
}

interface TimeLineProps {
  agent: Agent;
  query: string;
  shown: Shown;
  onDialog: (dialog: FactDialog) => void;
  onChange: () => Promise<void>;
}

function TimeLine({ agent, query, shown, onDialog, onChange }: TimeLineProps) {
  const chains = useMemo(() => chainsOf(shown.facts), [shown]);
  const axis = useMemo(() => new Axis(shown.facts, shown.episodes, Date.now()), [shown]);
  if (chains.length === 0 && shown.episodes.length === 0) {
    return query ? (
      <Empty title={`No fact matches “${query}”.`} />
    ) : (
      <Empty title="There are no facts yet.">
        <p>
          An agent learns facts when messages leave its window (compaction mode episodic), or when facts are extracted
          (memory extraction). You can add one with <strong>Add a fact</strong>.
        </p>
      </Empty>
    );
  }
  return (
    <div class="time-line">
      <div class="axis" aria-hidden="true">
        {axis.marks().map(({ left, text }) => (
          <span key={left} style={{ left: `${left}%` }}>
            {text}
          </span>
        ))}
      </div>
      {shown.episodes.length > 0 && (
        <ol class="lanes" aria-label="Episodes">
          {shown.episodes.map((episode) => (
            <EpisodeRow key={episode.id} agent={agent} episode={episode} axis={axis} onChange={onChange} />
          ))}
        </ol>
      )}
      <ol class="lanes" aria-label="Facts">
        {chains.map((chain) => (
          <ChainRow key={chain[0]!.id} agent={agent} chain={chain} axis={axis} query={query} onDialog={onDialog} />
        ))}
      </ol>
      {shown.hasMore && <p class="muted">These are the newest {PAGE}. Search for older ones.</p>}
    </div>
  );
}

function EpisodeRow({ agent, episode, axis, onChange }: { agent: Agent; episode: Episode; axis: Axis; onChange: () => Promise<void> }) {
  const action = useAction();
  const { left, width } = axis.episode(episode);
  const erase = () =>
    action.run(async () => {
      await episodes.deleteEpisode({ requestId: newRequestId(), episodeId: episode.id });
      await onChange();
    });
  return (
    <li class="card lane">
      <div class="track thin" aria-hidden="true">
        <span class="span is-episode" style={{ left: `${left}%`, width: `${width}%` }} />
      </div>
      <p class="text">{episode.summary}</p>
      <div class="buttons">
        <span class="tag">episode</span>
        <span class="muted">
          {episode.turnIds.length > 0 && `${count(episode.turnIds.length, "turn")}, `}
          <Time at={episode.startTime ?? episode.createTime} />
        </span>
        <Tags tags={episode.tags} />
        <span class="spacer" />
        <Evidence agent={agent} messageIds={episode.source?.messageIds ?? []} conversationId={episode.source?.conversationId} />
        <button type="button" class="quiet danger" disabled={action.busy} onClick={() => void erase()}>
          Delete episode
        </button>
      </div>
      <ProblemBox problem={action.problem} />
    </li>
  );
}

interface ChainRowProps {
  agent: Agent;
  chain: Chain;
  axis: Axis;
  query: string;
  onDialog: (dialog: FactDialog) => void;
}

/** The newest fact of a chain, with those that it replaced below it. */
function ChainRow({ agent, chain, axis, query, onDialog }: ChainRowProps) {
  const newest = chain.at(-1)!;
  const earlier = chain.slice(0, -1).reverse();
  const isOpen = !newest.closeTime;
  return (
    <li class={`card lane ${isOpen ? "" : "is-closed"}`}>
      <div class="track thin" aria-hidden="true">
        {chain.map((fact) => {
          const { left, width } = axis.fact(fact);
          const kind = !fact.closeTime ? "is-held" : fact.supersededById ? "is-superseded" : "is-withdrawn";
          return <span key={fact.id} class={`span ${kind}`} style={{ left: `${left}%`, width: `${width}%` }} title={fact.text} />;
        })}
      </div>
      <p class="text fact-text">
        <Highlighted text={newest.text} query={query} />
      </p>
      <div class="buttons">
        {!isOpen && <span class="tag">{newest.supersededById ? "superseded" : "withdrawn"}</span>}
        <span class="muted">
          {isOpen ? "learned " : "until "}
          <Time at={isOpen ? newest.createTime : (newest.invalidTime ?? newest.closeTime)} />
          {newest.confidence !== undefined && `, ${Math.round(100 * newest.confidence)} % sure`}
          {!isOpen && newest.invalidReason && `: ${newest.invalidReason}`}
        </span>
        <Tags tags={newest.tags} />
        <span class="spacer" />
        <Evidence agent={agent} messageIds={newest.source?.messageIds ?? []} conversationId={newest.source?.conversationId} />
        {isOpen && (
          <button type="button" class="quiet" onClick={() => onDialog({ kind: "correct", fact: newest })}>
            Correct
          </button>
        )}
        {!isOpen && (
          <button type="button" class="quiet" onClick={() => onDialog({ kind: "restore", fact: newest })}>
            Restore
          </button>
        )}
        <button type="button" class="quiet danger" onClick={() => onDialog({ kind: "forget", fact: newest })}>
          Forget
        </button>
      </div>
      {earlier.length > 0 && (
        <ol class="earlier-facts" aria-label="Superseded by it">
          {earlier.map((fact) => (
            <li key={fact.id}>
              <del>{fact.text}</del>{" "}
              <span class="muted">
                until <Time at={fact.invalidTime ?? fact.closeTime} />
                {fact.invalidReason && `: ${fact.invalidReason}`}
              </span>
            </li>
          ))}
        </ol>
      )}
    </li>
  );
}

function Tags({ tags }: { tags: string[] }) {
  return (
    <>
      {tags.map((tag) => (
        <span key={tag} class="tag">
          {tag}
        </span>
      ))}
    </>
  );
}

/** The link to the message that a memory was learned from. */
function Evidence({ agent, messageIds, conversationId }: { agent: Agent; messageIds: string[]; conversationId: string | undefined }) {
  const last = messageIds.at(-1);
  return last ? <a href={linkTo(agent.id, "chat", conversationId || agent.defaultConversationId, last)}>Where from</a> : null;
}
