// The groups of the organization, and the form for a new one.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { useState } from "preact/hooks";
import type { Agent } from "../gen/mnemesh/agents/v1/agents_pb";
import { type Group, type ManagerConfigSchema } from "../gen/mnemesh/agents/v1/groups_pb";
import { SortOrder } from "../gen/mnemesh/types/v1/paging_pb";
import { agents, groups, newRequestId } from "./api";
import { count } from "./format";
import { GroupPage } from "./group";
import { Busy, Dialog, Empty, Field, ProblemBox, Time, useAction, useLoad } from "./parts";
import { linkToSection } from "./route";

const PAGE = 100;

/** What each kind of group does with a message. */
export const KINDS = {
  roundRobin: { title: "round robin", says: "The members answer in their order." },
  supervisor: { title: "supervisor", says: "The manager answers, after it has asked all members at once." },
  dynamic: { title: "dynamic", says: "The manager selects who answers next." },
  sleeptime: { title: "sleep-time", says: "The manager answers. The members maintain its memory afterwards." },
  voiceSleeptime: { title: "voice sleep-time", says: "As sleep-time, for an agent that speaks." },
  swarm: { title: "swarm", says: "No one answers: such a group can be stored only." },
} as const;
export type Kind = keyof typeof KINDS;

export function kindOf(group: Group): Kind {
  return group.managerConfig?.config.case ?? "roundRobin";
}

export function managerOf(group: Group): string {
  const config = group.managerConfig?.config;
  return config?.case && "managerAgentId" in config.value ? config.value.managerAgentId : "";
}

export function Groups({ groupId }: { groupId: string }) {
  return groupId ? <GroupPage groupId={groupId} /> : <GroupList />;
}

function GroupList() {
  const [isAdding, setAdding] = useState(false);
  const [more, setMore] = useState<{ rows: Group[]; token: string }>({ rows: [], token: "" });
  const action = useAction();
  const page = async (pageToken: string, signal?: AbortSignal) => {
    const found = await groups.listGroups({ pageSize: PAGE, pageToken, order: SortOrder.DESCENDING }, { signal });
    return { rows: found.groups, token: found.nextPageToken };
  };
  const { value, problem, reload } = useLoad(async (signal) => {
    const first = await page("", signal);
    setMore({ rows: [], token: first.token });
    return first.rows;
  }, []);
  const loadMore = () =>
    action.run(async () => {
      const next = await page(more.token);
      setMore({ rows: [...more.rows, ...next.rows], token: next.token });
    });
  const rows = [...(value ?? []), ...more.rows];
  return (
    <section class="page" aria-labelledby="groups-title">
      <header class="page-head">
        <h1 id="groups-title">Groups</h1>
        <button type="button" class="primary" onClick={() => setAdding(true)}>
          New group
        </button>
      </header>
      <ProblemBox problem={problem ?? action.problem} retry={problem && reload} />
      {!value && !problem && <Busy what="Loading groups" />}
      {value?.length === 0 && (
        <Empty title="There is no group yet.">
          <p>
            A group is several agents that answer together, or agents that work in the background of one. Create two agents
            first, then combine them with <strong>New group</strong>.
          </p>
        </Empty>
      )}
      {rows.length > 0 && (
        <ul class="rows" aria-label="Groups">
          {rows.map((group) => (
            <li class="row" key={group.id}>
              <a class="row-name" href={linkToSection("groups", group.id)}>
                <span title={nameOf(group)}>{nameOf(group)}</span>
              </a>
              <span class="row-text muted">{KINDS[kindOf(group)].says}</span>
              <span class="row-tags">
                <span class="tag">{KINDS[kindOf(group)].title}</span>
                <span class="muted">{count(group.agentIds.length, "member")}</span>
              </span>
              <span class="row-end muted">
                <Time at={group.updateTime} />
              </span>
            </li>
          ))}
        </ul>
      )}
      {more.token && (
        <button type="button" disabled={action.busy} onClick={() => void loadMore()}>
          More groups
        </button>
      )}
      {isAdding && <AddGroup onClose={() => setAdding(false)} />}
    </section>
  );
}

export function nameOf(group: Group): string {
  return group.description || `Group ${group.id.slice(6, 14)}`;
}

const WITH_MANAGER: Kind[] = ["supervisor", "dynamic", "sleeptime", "voiceSleeptime"];

function configOf(kind: Kind, managerAgentId: string): MessageInitShape<typeof ManagerConfigSchema> {
  switch (kind) {
    case "supervisor":
    case "dynamic":
    case "sleeptime":
    case "voiceSleeptime":
      return { config: { case: kind, value: { managerAgentId } } };
    default:
      return { config: { case: "roundRobin", value: {} } };
  }
}

function AddGroup({ onClose }: { onClose: () => void }) {
  const [requestId] = useState(newRequestId);
  const [description, setDescription] = useState("");
  const [kind, setKind] = useState<Kind>("roundRobin");
  const [manager, setManager] = useState("");
  const [members, setMembers] = useState<string[]>([]);
  const action = useAction();
  const known = useLoad(async (signal) => (await agents.listAgents({ pageSize: 200 }, { signal })).agents, []);
  const hasManager = WITH_MANAGER.includes(kind);
  const chosen = members.filter((id) => !hasManager || id !== manager);
  const add = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      const managerConfig = configOf(kind, manager);
      const made = await groups.createGroup({ requestId, group: { description, agentIds: chosen, managerConfig } });
      location.hash = linkToSection("groups", made.group!.id);
    });
  };
  return (
    <Dialog title="New group" onClose={onClose}>
      <form onSubmit={add}>
        <Field label="Name" hint="The description of the group.">
          {(id) => (
            <input
              id={id}
              required
              autoFocus
              value={description}
              onInput={(event) => setDescription(event.currentTarget.value)}
            />
          )}
        </Field>
        <Field label="Kind" hint={KINDS[kind].says}>
          {(id) => (
            <select id={id} value={kind} onChange={(event) => setKind(event.currentTarget.value as Kind)}>
              {(["roundRobin", ...WITH_MANAGER] as Kind[]).map((each) => (
                <option key={each} value={each}>
                  {KINDS[each].title}
                </option>
              ))}
            </select>
          )}
        </Field>
        {hasManager && (
          <Field label="Manager">
            {(id) => (
              <select id={id} required value={manager} onChange={(event) => setManager(event.currentTarget.value)}>
                <option value="">Choose an agent</option>
                {known.value?.map((agent) => (
                  <option key={agent.id} value={agent.id}>
                    {agent.name}
                  </option>
                ))}
              </select>
            )}
          </Field>
        )}
        <Members
          known={(known.value ?? []).filter(({ id }) => !hasManager || id !== manager)}
          members={chosen}
          onChange={setMembers}
        />
        <ProblemBox problem={action.problem ?? known.problem} />
        <footer class="dialog-foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={action.busy || chosen.length === 0}>
            Create group
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

interface MembersProps {
  known: Agent[];
  members: string[];
  onChange: (members: string[]) => void;
}

/** The members in the order in which they were checked, which is the order of a round robin. */
function Members({ known, members, onChange }: MembersProps) {
  return (
    <fieldset>
      <legend>Members</legend>
      {known.length === 0 && <p class="muted">There is no agent to choose.</p>}
      <div class="choices">
        {known.map(({ id, name }) => {
          const place = members.indexOf(id);
          return (
            <label key={id} class="inline">
              <input
                type="checkbox"
                checked={place >= 0}
                onChange={() => onChange(place >= 0 ? members.filter((each) => each !== id) : [...members, id])}
              />
              <span>{name}</span>
              {place >= 0 && <span class="tag">{place + 1}</span>}
            </label>
          );
        })}
      </div>
    </fieldset>
  );
}
