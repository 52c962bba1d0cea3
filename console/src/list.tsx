// Lists of what the mesh has: pages that are loaded one after the other, a first step if there is nothing, and the agents
// that hold a thing.

import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";
import type { Agent } from "../gen/mnemesh/agents/v1/agents_pb";
import { newRequestId, type Problem } from "./api";
import { agents } from "./clients/agents";
import { Busy, ProblemBox, useAction, useLoad } from "./parts";
import { linkTo, linkToSection, type Panel, type Section } from "./route";

const MOST_AGENTS = 200;

/** A page of a list. The token is empty after the last one. */
export interface Page<T> {
  rows: T[];
  token: string;
}

export interface Pages<T> {
  /** All rows that are loaded; undefined before the first page. */
  rows: T[] | undefined;
  problem: Problem | undefined;
  reload: () => Promise<void>;
  /** Loads the next page; undefined after the last one. */
  loadMore: (() => void) | undefined;
  isBusy: boolean;
}

/** Loads the first page when the list opens and when a key changes, and further ones on demand. */
export function usePages<T>(page: (token: string, signal?: AbortSignal) => Promise<Page<T>>, keys: unknown[]): Pages<T> {
  const [further, setFurther] = useState<Page<T>>({ rows: [], token: "" });
  const action = useAction();
  const { value, problem, reload } = useLoad(async (signal) => {
    const first = await page("", signal);
    setFurther({ rows: [], token: first.token });
    return first.rows;
  }, keys);
  const loadMore = () =>
    void action.run(async () => {
      const next = await page(further.token);
      setFurther({ rows: [...further.rows, ...next.rows], token: next.token });
    });
  return {
    rows: value && [...value, ...further.rows],
    problem: problem ?? action.problem,
    reload,
    loadMore: further.token ? loadMore : undefined,
    isBusy: action.busy,
  };
}

interface ListingProps<T> {
  pages: Pages<T>;
  /** What the rows are, such as "Folders". */
  of: string;
  class?: string;
  /** What is shown if there is no row. */
  empty: ComponentChildren;
  /** Returns the list item of a row. */
  children: (row: T) => ComponentChildren;
}

export function Listing<T>({ pages, of, class: kind = "rows", empty, children }: ListingProps<T>) {
  const { rows, problem, reload, loadMore, isBusy } = pages;
  return (
    <>
      <ProblemBox problem={problem} retry={reload} />
      {!rows && !problem && <Busy what={`Loading ${of.toLowerCase()}`} />}
      {rows?.length === 0 && empty}
      {rows && rows.length > 0 && (
        <ul class={kind} aria-label={of}>
          {rows.map(children)}
        </ul>
      )}
      {loadMore && (
        <button type="button" class="start" disabled={isBusy} onClick={loadMore}>
          More {of.toLowerCase()}
        </button>
      )}
    </>
  );
}

interface FilterProps {
  label: string;
  value: string;
  onChange: (text: string) => void;
}

/** Filters a list with Enter, or when the field is left. */
export function Filter({ label, value, onChange }: FilterProps) {
  return (
    <input
      type="search"
      placeholder={label}
      aria-label={label}
      value={value}
      onChange={(event) => onChange(event.currentTarget.value.trim())}
    />
  );
}

interface RowProps {
  name: string;
  href?: string;
  isMono?: boolean;
  text?: ComponentChildren;
  tags?: ComponentChildren;
  end?: ComponentChildren;
}

export function Row({ name, href, isMono, text, tags, end }: RowProps) {
  const kind = isMono ? "row-name mono" : "row-name";
  const shown = <span title={name}>{name}</span>;
  return (
    <li class="row">
      {href ? (
        <a class={kind} href={href}>
          {shown}
        </a>
      ) : (
        <span class={kind}>{shown}</span>
      )}
      <span class="row-text muted">{text}</span>
      <span class="row-tags muted">{tags}</span>
      {end && <span class="row-end muted">{end}</span>}
    </li>
  );
}

interface ItemHeadProps {
  section: Section;
  /** The words of the link to the list. */
  back: string;
  id: string;
  name: string;
  isMono?: boolean;
  /** What stands after the name. */
  about: ComponentChildren;
  children?: ComponentChildren;
}

/** The head of the page of one item: the way back to the list, its name, and its buttons. */
export function ItemHead({ section, back, id, name, isMono, about, children }: ItemHeadProps) {
  return (
    <header class="page-head">
      <div class="title">
        <a href={linkToSection(section)} class="back">
          {back}
        </a>
        <h1 id={id} class={isMono ? "mono" : ""} title={name}>
          {name}
        </h1>
        {about}
      </div>
      <div class="buttons">{children}</div>
    </header>
  );
}

/** Returns the agents that a person may choose from. */
export function useAgents() {
  return useLoad(async (signal) => (await agents.listAgents({ pageSize: MOST_AGENTS }, { signal })).agents, []);
}

interface AgentSelectProps {
  id?: string;
  label?: string;
  known: Agent[] | undefined;
  value: string;
  onChange: (agentId: string) => void;
}

export function AgentSelect({ id, label, known, value, onChange }: AgentSelectProps) {
  return (
    <select id={id} required aria-label={label} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
      <option value="">Choose an agent</option>
      {known?.map((agent) => (
        <option key={agent.id} value={agent.id}>
          {agent.name}
        </option>
      ))}
    </select>
  );
}

interface HoldersProps {
  /** What the agents hold, such as "folder". */
  of: string;
  /** The panel of an agent to which its name leads. */
  panel?: Panel;
  holders: Agent[] | undefined;
  problem?: Problem | undefined;
  reload: () => Promise<void>;
  /** The words of the buttons that give the thing to an agent and take it away. */
  words: { give: string; take: string };
  give: (requestId: string, agentId: string) => Promise<unknown>;
  take: (requestId: string, agentId: string) => Promise<unknown>;
  note: (agent: Agent) => ComponentChildren;
}

/** The agents that hold a thing: it is given to others, and taken away. */
export function Holders({ of, panel, holders, problem, reload, words, give, take, note }: HoldersProps) {
  const id = useId();
  const [chosen, setChosen] = useState("");
  const action = useAction();
  const known = useAgents();
  const others = known.value?.filter(({ id }) => !holders?.some((held) => held.id === id));
  const change = (work: typeof give, agentId: string) =>
    void action.run(async () => {
      await work(newRequestId(), agentId);
      setChosen("");
      await reload();
    });
  return (
    <section class="stack" aria-labelledby={id}>
      <header class="page-head">
        <h2 id={id}>Agents</h2>
        <form class="search" onSubmit={(event) => (event.preventDefault(), change(give, chosen))}>
          <AgentSelect label={`Agent that gets the ${of}`} known={others} value={chosen} onChange={setChosen} />
          <button type="submit" disabled={action.busy || !chosen}>
            {words.give}
          </button>
        </form>
      </header>
      <ProblemBox problem={problem ?? action.problem ?? known.problem} retry={problem && reload} />
      {holders?.length === 0 && <p class="muted">No agent holds this {of}.</p>}
      {holders && holders.length > 0 && (
        <ul class="rows" aria-label={`Agents that hold the ${of}`}>
          {holders.map((agent) => (
            <Row
              key={agent.id}
              name={agent.name}
              href={linkTo(agent.id, panel)}
              text={note(agent)}
              end={
                <button
                  type="button"
                  class="quiet danger"
                  disabled={action.busy}
                  aria-label={`${words.take} from ${agent.name}`}
                  onClick={() => change(take, agent.id)}
                >
                  {words.take}
                </button>
              }
            />
          ))}
        </ul>
      )}
    </section>
  );
}
