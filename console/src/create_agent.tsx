// The form of a new agent, with the request that it sends.

import { create, toJsonString } from "@bufbuild/protobuf";
import { useState } from "preact/hooks";
import { AgentType } from "../gen/mnemesh/agents/v1/agents_pb";
import { CreateAgentRequestSchema } from "../gen/mnemesh/agents/v1/agents_service_pb";
import { agents, models } from "./clients/agents";
import { FormDialog } from "./dialog";
import { words } from "./format";
import { Field, Json, ProblemBox, TextField, useLoad } from "./parts";
import { linkTo } from "./route";

const TYPES = [
  AgentType.LETTA_V1,
  AgentType.MEMGPT_V2,
  AgentType.MEMGPT,
  AgentType.REACT,
  AgentType.WORKFLOW,
  AgentType.VOICE_CONVO,
];

export function CreateAgent({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [model, setModel] = useState("");
  const [type, setType] = useState(AgentType.LETTA_V1);
  const [blocks, setBlocks] = useState([
    { label: "human", value: "" },
    { label: "persona", value: "" },
  ]);
  const known = useLoad(async (signal) => {
    const [{ models: found }, { model: standard }] = await Promise.all([
      models.listModels({ pageSize: 1000, hidden: false }, { signal }),
      models.getModel({}, { signal }),
    ]);
    return { handles: found.map(({ handle }) => handle), standard: standard?.handle ?? "" };
  }, []);
  const chosen = model || known.value?.standard || "";
  const request = create(CreateAgentRequestSchema, {
    agent: { name: name.trim(), model: chosen, type },
    blocks: blocks.filter(({ label }) => label.trim()),
  });
  const change = (index: number, changed: Partial<{ label: string; value: string }>) =>
    setBlocks(blocks.map((block, at) => (at === index ? { ...block, ...changed } : block)));
  const send = async (requestId: string) => {
    const { agent } = await agents.createAgent({ ...request, requestId });
    location.hash = linkTo(agent!.id);
  };
  return (
    <FormDialog title="New agent" submit="Create agent" send={send} onClose={onClose}>
        <TextField label="Name" required autoFocus value={name} onChange={setName} />
        <div class="columns">
          <Field label="Model">
            {(id) => (
              <select id={id} value={chosen} onChange={(event) => setModel(event.currentTarget.value)}>
                {!known.value && <option value="">default (models are loading)</option>}
                {known.value?.handles.map((handle) => (
                  <option key={handle} value={handle}>
                    {handle === known.value?.standard ? `${handle} (default)` : handle}
                  </option>
                ))}
              </select>
            )}
          </Field>
          <Field label="Type">
            {(id) => (
              <select id={id} value={type} onChange={(event) => setType(Number(event.currentTarget.value))}>
                {TYPES.map((each) => (
                  <option key={each} value={each}>
                    {words(AgentType[each])}
                  </option>
                ))}
              </select>
            )}
          </Field>
        </div>
        <ProblemBox problem={known.problem} retry={known.reload} />
        <fieldset>
          <legend>Blocks of core memory</legend>
          {blocks.map((block, index) => (
            <div class="block-row" key={index}>
              <input
                aria-label={`Label of block ${index + 1}`}
                placeholder="label"
                value={block.label}
                onInput={(event) => change(index, { label: event.currentTarget.value })}
              />
              <textarea
                aria-label={`Text of block ${block.label || index + 1}`}
                placeholder={index === 0 ? "What the agent knows about you" : "Text"}
                rows={2}
                value={block.value}
                onInput={(event) => change(index, { value: event.currentTarget.value })}
              />
              <button
                type="button"
                class="quiet"
                aria-label={`Remove block ${block.label}`}
                onClick={() => setBlocks(blocks.filter((_, at) => at !== index))}
              >
                ✕
              </button>
            </div>
          ))}
          <button type="button" onClick={() => setBlocks([...blocks, { label: "", value: "" }])}>
            Add a block
          </button>
        </fieldset>
        <details>
          <summary>The request that will be sent</summary>
          <Json text={toJsonString(CreateAgentRequestSchema, request)} label="Request of CreateAgent" />
        </details>
    </FormDialog>
  );
}
