// Archival memory: the passages of the agent's archives, searched by words, meaning, tags and days.

import { useState } from "preact/hooks";
import type { Agent } from "../../gen/mnemesh/agents/v1/agents_pb";
import { type PassageHit, TagMatch } from "../../gen/mnemesh/archival/v1/passages_service_pb";
import { newRequestId } from "../api";
import { passages } from "../clients/memory";
import { Busy, Empty, ProblemBox, Time, useAction, useLoad } from "../parts";
import { ALL_DAYS, DayRange, daysFilter, Highlighted, Score, SearchBox, tagsOf } from "./search";

const HITS = 20;
/** What one search returns at most. */
const MOST_HITS = 100;

export function Passages({ agent }: { agent: Agent }) {
  const [query, setQuery] = useState("");
  const [tags, setTags] = useState<string[]>([]);
  const [needsAll, setNeedsAll] = useState(false);
  const [days, setDays] = useState(ALL_DAYS);
  const [limit, setLimit] = useState(HITS);
  const action = useAction();
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const tagMatch = needsAll ? TagMatch.ALL : TagMatch.ANY;
      const filter = { agentId: agent.id, tags, tagMatch, ...daysFilter(days) };
      const hits: PassageHit[] = [];
      let pageToken = "";
      for (;;) {
        const page = await passages.searchPassages({ query, limit, filter, pageToken }, { signal });
        hits.push(...page.hits);
        pageToken = page.nextPageToken;
        if (!pageToken) {
          return { hits, degraded: page.degraded };
        }
      }
    },
    [agent.id, query, tags, needsAll, days, limit],
  );
  const summary = useLoad((signal) => passages.getArchivalSummary({ agentId: agent.id }, { signal }), [agent.id]);
  const refresh = async () => void (await Promise.all([reload(), summary.reload()]));
  const remove = (passageId: string) =>
    action.run(async () => {
      await passages.deletePassage({ requestId: newRequestId(), passageId });
      await refresh();
    });
  const isFiltered = query !== "" || tags.length > 0 || days.start !== "" || days.end !== "";
  return (
    <section class="stack" aria-labelledby="passages-title">
      <header class="page-head">
        <h2 id="passages-title">Archival memory</h2>
        <SearchBox label="Search passages" onSearch={(text) => (setQuery(text), setLimit(HITS))} />
      </header>
      <div class="filters">
        <label class="inline">
          Tags
          <input
            placeholder="tea, house"
            aria-label="Tags of the passages"
            list="passage-tags"
            onChange={(event) => setTags(tagsOf(event.currentTarget.value))}
          />
        </label>
        <datalist id="passage-tags">
          {summary.value?.tags.map((tag) => (
            <option key={tag} value={tag} />
          ))}
        </datalist>
        {tags.length > 1 && (
          <label class="inline">
            <input type="checkbox" checked={needsAll} onChange={(event) => setNeedsAll(event.currentTarget.checked)} />
            all of them
          </label>
        )}
        <DayRange of="passages" days={days} onChange={setDays} />
      </div>
      <ProblemBox problem={problem ?? action.problem} retry={problem && reload} />
      {!value && !problem && <Busy what="Searching" />}
      {value?.degraded && <p class="muted">The search by meaning is not available now. These are hits by words.</p>}
      {value?.hits.length === 0 &&
        (isFiltered ? (
          <Empty title="No passage matches this search." />
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
      {value?.hits.length === limit && limit < MOST_HITS && (
        <div class="buttons">
          <button type="button" onClick={() => setLimit(MOST_HITS)}>
            More passages
          </button>
        </div>
      )}
      <AddPassage agent={agent} onAdded={refresh} />
    </section>
  );
}

function AddPassage({ agent, onAdded }: { agent: Agent; onAdded: () => Promise<void> }) {
  const [text, setText] = useState("");
  const [tags, setTags] = useState("");
  const action = useAction();
  const insert = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      const target = { case: "agentId" as const, value: agent.id };
      await passages.insertPassages({ requestId: newRequestId(), target, passages: [{ text, tags: tagsOf(tags) }] });
      setText("");
      await onAdded();
    });
  };
  return (
    <form class="search add" onSubmit={insert}>
      <input
        aria-label="Text of a new passage"
        placeholder="Text of a new passage"
        required
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <input
        class="narrow"
        aria-label="Tags of the new passage"
        placeholder="Tags"
        value={tags}
        onInput={(event) => setTags(event.currentTarget.value)}
      />
      <button type="submit" disabled={action.busy || !text.trim()}>
        Add passage
      </button>
      <ProblemBox problem={action.problem} />
    </form>
  );
}
