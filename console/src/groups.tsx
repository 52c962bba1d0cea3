// The groups of the organization.

import { useState } from "preact/hooks";
import type { Group } from "../gen/mnemesh/agents/v1/groups_pb";
import { SortOrder } from "../gen/mnemesh/types/v1/paging_pb";
import { groups } from "./clients/agents";
import { count } from "./format";
import { GroupPage } from "./group";
import { GroupForm } from "./group_form";
import { Listing, Row, usePages } from "./list";
import { Empty, Time } from "./parts";
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

export function Groups({ itemId }: { itemId: string }) {
  return itemId ? <GroupPage groupId={itemId} /> : <GroupList />;
}

function GroupList() {
  const [isAdding, setAdding] = useState(false);
  const pages = usePages(async (pageToken, signal) => {
    const found = await groups.listGroups({ pageSize: PAGE, pageToken, order: SortOrder.DESCENDING }, { signal });
    return { rows: found.groups, token: found.nextPageToken };
  }, []);
  return (
    <section class="page" aria-labelledby="groups-title">
      <header class="page-head">
        <h1 id="groups-title">Groups</h1>
        <button type="button" class="primary" onClick={() => setAdding(true)}>
          New group
        </button>
      </header>
      <Listing
        pages={pages}
        of="Groups"
        empty={
          <Empty title="There is no group yet.">
            <p>
              A group is several agents that answer together, or agents that work in the background of one. Create two agents
              first, then combine them with <strong>New group</strong>.
            </p>
          </Empty>
        }
      >
        {(group) => (
          <Row
            key={group.id}
            name={nameOf(group)}
            href={linkToSection("groups", group.id)}
            text={KINDS[kindOf(group)].says}
            tags={
              <>
                <span class="tag">{KINDS[kindOf(group)].title}</span>
                {count(group.agentIds.length, "member")}
              </>
            }
            end={<Time at={group.updateTime} />}
          />
        )}
      </Listing>
      {isAdding && <GroupForm onClose={() => setAdding(false)} />}
    </section>
  );
}

export function nameOf(group: Group): string {
  return group.description || `Group ${group.id.slice(6, 14)}`;
}
