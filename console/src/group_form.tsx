// The form of a group: a new one, or the members and the manager of one that exists.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { useState } from "preact/hooks";
import type { Agent } from "../gen/mnemesh/agents/v1/agents_pb";
import { type Group, type ManagerConfig, type ManagerConfigSchema } from "../gen/mnemesh/agents/v1/groups_pb";
import { groups } from "./clients/agents";
import { FormDialog } from "./dialog";
import { type Kind, kindOf, KINDS, managerOf } from "./groups";
import { AgentSelect, useAgents } from "./list";
import { Field, ProblemBox, TextField } from "./parts";
import { linkToSection } from "./route";

const WITH_MANAGER: Kind[] = ["supervisor", "dynamic", "sleeptime", "voiceSleeptime"];

interface Setting {
  label: string;
  hint: string;
  isText?: boolean;
}

/** The settings of managers, by their names in the contract. */
const SETTINGS: Record<string, Setting> = {
  maxTurns: { label: "Turns per message", hint: "Empty means one per member." },
  terminationToken: { label: "Word that ends the round", hint: "Empty means “DONE!”.", isText: true },
  sleeptimeAgentFrequency: { label: "Turns between runs of the members", hint: "Empty means after every turn." },
  maxMessageBufferLength: { label: "Messages in the window, at most", hint: "Empty means 30." },
  minMessageBufferLength: { label: "Messages that stay in the window", hint: "Empty means 15." },
  maxSteps: { label: "Steps of a member's run, at most", hint: "Empty means 50." },
};
const SETTINGS_OF: Partial<Record<Kind, string[]>> = {
  roundRobin: ["maxTurns"],
  dynamic: ["maxTurns", "terminationToken"],
  sleeptime: ["sleeptimeAgentFrequency", "maxSteps"],
  voiceSleeptime: ["maxMessageBufferLength", "minMessageBufferLength", "maxSteps"],
};

/** The settings as text fields hold them. */
type Values = Record<string, string>;

function valuesOf(config: ManagerConfig | undefined): Values {
  const value = config?.config.value ?? {};
  return Object.fromEntries(Object.entries(value).flatMap(([name, each]) => (SETTINGS[name] ? [[name, String(each)]] : [])));
}

/** Returns the settings of a manager. Those that the form does not have stay as they are. */
function configOf(kind: Kind, managerAgentId: string, values: Values, known?: ManagerConfig) {
  const settings = (SETTINGS_OF[kind] ?? []).map((name) => {
    const text = values[name]?.trim() ?? "";
    return [name, text === "" ? undefined : SETTINGS[name]!.isText ? text : Number(text)];
  });
  const value = {
    ...(known?.config.case === kind ? known.config.value : {}),
    ...(WITH_MANAGER.includes(kind) ? { managerAgentId } : {}),
    ...Object.fromEntries(settings),
  };
  return { config: { case: kind, value } } as MessageInitShape<typeof ManagerConfigSchema>;
}

interface GroupFormProps {
  /** Absent for a new one. */
  group?: Group;
  onClose: () => void;
  onSaved?: () => Promise<void>;
}

export function GroupForm({ group, onClose, onSaved }: GroupFormProps) {
  const [description, setDescription] = useState(group?.description ?? "");
  const [kind, setKind] = useState<Kind>(group ? kindOf(group) : "roundRobin");
  const [manager, setManager] = useState(group ? managerOf(group) : "");
  const [members, setMembers] = useState<string[]>(group?.agentIds ?? []);
  const [values, setValues] = useState(() => valuesOf(group?.managerConfig));
  const known = useAgents();
  const hasManager = WITH_MANAGER.includes(kind);
  const chosen = members.filter((id) => !hasManager || id !== manager);
  const send = async (requestId: string) => {
    const managerConfig = configOf(kind, manager, values, group?.managerConfig);
    const changed = { description, agentIds: chosen, managerConfig };
    if (group) {
      const updateMask = { paths: ["description", "agent_ids", "manager_config"] };
      await groups.updateGroup({ requestId, group: { id: group.id, ...changed }, updateMask, ifRevision: group.revision });
      await onSaved?.();
    } else {
      const made = await groups.createGroup({ requestId, group: changed });
      location.hash = linkToSection("groups", made.group!.id);
    }
  };
  return (
    <FormDialog
      title={group ? "Edit the group" : "New group"}
      submit={group ? "Save" : "Create group"}
      isReady={chosen.length > 0}
      send={send}
      onClose={onClose}
    >
      <TextField label="Name" hint="The description of the group." required autoFocus value={description} onChange={setDescription} />
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
          {(id) => <AgentSelect id={id} known={known.value} value={manager} onChange={setManager} />}
        </Field>
      )}
      <Members
        known={(known.value ?? []).filter(({ id }) => !hasManager || id !== manager)}
        members={chosen}
        onChange={setMembers}
      />
      {SETTINGS_OF[kind] && (
        <div class="columns">
          {SETTINGS_OF[kind].map((name) => (
            <TextField
              key={name}
              {...SETTINGS[name]!}
              type={SETTINGS[name]!.isText ? "text" : "number"}
              min={1}
              value={values[name] ?? ""}
              onChange={(text) => setValues({ ...values, [name]: text })}
            />
          ))}
        </div>
      )}
      <ProblemBox problem={known.problem} retry={known.reload} />
    </FormDialog>
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
