// One tool: an editor of its source with the schema that models see, and a trial run.

import { create } from "@bufbuild/protobuf";
import { useEffect, useRef, useState } from "preact/hooks";
import { type ExecuteToolResponse, ExecutionStatus } from "../gen/mnemesh/tools/v1/execution_service_pb";
import { PackagesState, SourceType, type Tool, ToolSchema, ToolType } from "../gen/mnemesh/tools/v1/tools_pb";
import { newRequestId, type Problem, problemOf } from "./api";
import { agents } from "./clients/agents";
import { executions, tools } from "./clients/tools";
import { FormDialog } from "./dialog";
import { duration, milliseconds, words } from "./format";
import { Holders, ItemHead } from "./list";
import { Busy, Check, Field, Json, ProblemBox, TextField, Time, useAction, useLoad } from "./parts";
import { linkToSection } from "./route";
import { descriptionOf, exampleArguments, parseSchema } from "./schema";
import { Secrets } from "./secrets";
import { typeName } from "./tools";

const PREVIEW_MS = 400;
const MOST_AGENTS = 200;
/** A trial may take as long as a tool: the longest deadline is that of the tool itself. */
const TRIAL_MS = 200_000;
const TEMPLATES: Partial<Record<SourceType, string>> = {
  [SourceType.PYTHON]: `def roll_dice(sides: int = 6) -> int:
    """Roll a die.

    Args:
        sides: how many sides it has.
    """
    import random

    print("rolling")
    return random.randint(1, sides)
`,
  [SourceType.TYPESCRIPT]: `/**
 * Roll a die.
 *
 * @param sides how many sides it has
 */
export function roll_dice(sides: number = 6): number {
  console.log("rolling");
  return 1 + Math.floor(Math.random() * sides);
}
`,
};

export function ToolPage({ toolId }: { toolId: string }) {
  const { value, problem, reload } = useLoad(async (signal) => {
    if (!toolId) {
      const sourceType = SourceType.PYTHON;
      return create(ToolSchema, { type: ToolType.CUSTOM, sourceType, sourceCode: TEMPLATES[sourceType] });
    }
    const key = { case: "toolId" as const, value: toolId };
    return (await tools.getTool({ key }, { signal })).tool!;
  }, [toolId]);
  return (
    <section class="page wide" aria-labelledby="tool-name">
      <ProblemBox problem={problem} retry={reload} list="tools" />
      {!value && !problem && <Busy what="Loading the tool" />}
      {value && <ToolView key={`${value.id}/${value.revision}`} tool={value} onChange={reload} />}
    </section>
  );
}

interface ToolViewProps {
  tool: Tool;
  onChange: () => Promise<void>;
}

function ToolView({ tool, onChange }: ToolViewProps) {
  const [isDeleting, setDeleting] = useState(false);
  const isNew = tool.id === "";
  const remove = async (requestId: string) => {
    await tools.deleteTool({ requestId, toolId: tool.id });
    location.hash = linkToSection("tools");
  };
  return (
    <>
      <ItemHead
        section="tools"
        back="All tools"
        id="tool-name"
        name={isNew ? "New tool" : tool.name}
        isMono={!isNew}
        about={
          <>
            <span class="tag">{typeName(tool.type)}</span>
            {!isNew && (
              <span class="muted">
                revision {String(tool.revision)}, <Time at={tool.updateTime} />
              </span>
            )}
          </>
        }
      >
        {!isNew && tool.type !== ToolType.BUILTIN && (
          <button type="button" class="danger" onClick={() => setDeleting(true)}>
            Delete
          </button>
        )}
      </ItemHead>
      {tool.type === ToolType.CUSTOM ? <Editor tool={tool} onChange={onChange} /> : <Described tool={tool} />}
      {!isNew && tool.type === ToolType.CUSTOM && (
        <Secrets
          names={tool.secrets.map(({ name }) => name)}
          hint="Environment variables of the tool. Values are stored encrypted and never shown again. An agent's own variables override them."
          save={async (requestId, values) => {
            const secrets = values.map(({ name, value }) => ({ name, value }));
            await tools.updateTool({ requestId, tool: { id: tool.id, secrets }, updateMask: { paths: ["secrets"] } });
            await onChange();
          }}
        />
      )}
      {!isNew && <ToolAgents tool={tool} />}
      {isDeleting && (
        <FormDialog title={`Delete ${tool.name}?`} submit="Delete tool" isDanger send={remove} onClose={() => setDeleting(false)}>
          <p>Agents that hold the tool lose it. A call that waits for it returns an error to the model.</p>
        </FormDialog>
      )}
    </>
  );
}

/** The agents that hold a tool. */
function ToolAgents({ tool }: { tool: Tool }) {
  const { value, problem, reload } = useLoad(
    async (signal) => (await agents.listAgents({ filter: { toolId: tool.id }, pageSize: MOST_AGENTS }, { signal })).agents,
    [tool.id],
  );
  const toolKey = { case: "toolId" as const, value: tool.id };
  return (
    <Holders
      of="tool"
      holders={value}
      problem={problem}
      reload={reload}
      words={{ give: "Give it", take: "Take it" }}
      give={(requestId, agentId) => agents.attachTool({ requestId, agentId, tool: toolKey })}
      take={(requestId, agentId) => agents.detachTool({ requestId, agentId, tool: toolKey })}
      note={({ model }) => <span class="mono">{model}</span>}
    />
  );
}

/** A tool without source: what a model reads about it. */
function Described({ tool }: { tool: Tool }) {
  return (
    <div class="card stack">
      <p class="text">{descriptionOf(tool)}</p>
      <Parameters schema={tool.jsonSchema} />
      <details>
        <summary>JSON schema</summary>
        <Json text={tool.jsonSchema} label="JSON schema" />
      </details>
    </div>
  );
}

/** The settings of a tool that the editor changes, as text fields hold them. */
interface Draft {
  sourceCode: string;
  sourceType: SourceType;
  packages: string;
  hosts: string;
  asks: boolean;
}

function draftOf(tool: Tool): Draft {
  const requirements = tool.sourceType === SourceType.TYPESCRIPT ? tool.npmRequirements : tool.pipRequirements;
  return {
    sourceCode: tool.sourceCode ?? "",
    sourceType: tool.sourceType || SourceType.PYTHON,
    packages: requirements.map(({ name, version }) => (version ? `${name} ${version}` : name)).join(", "),
    hosts: tool.networkHosts.join(", "),
    asks: tool.defaultRequiresApproval ?? false,
  };
}

/** Returns the fields of a tool, or of a trial of one, that a draft says. */
function fieldsOf(draft: Draft) {
  const requirements = listed(draft.packages).map((entry) => {
    const [, name = entry, version] = /^(\S+?)\s*([<>=!~\d^].*)?$/.exec(entry) ?? [];
    return version ? { name, version: version.trim() } : { name };
  });
  const isPython = draft.sourceType === SourceType.PYTHON;
  return {
    sourceCode: draft.sourceCode,
    sourceType: draft.sourceType,
    pipRequirements: isPython ? requirements : [],
    npmRequirements: isPython ? [] : requirements,
    networkHosts: listed(draft.hosts),
  };
}

function listed(text: string): string[] {
  // A comma within a range of versions, such as ">=2,<3", is followed by a comparison.
  return text
    .split(/[,\n](?!\s*[<>=!~])/)
    .map((entry) => entry.trim())
    .filter(Boolean);
}

const PATHS = ["source_code", "source_type", "pip_requirements", "npm_requirements", "network_hosts"];

function Editor({ tool, onChange }: ToolViewProps) {
  const [draft, setDraft] = useState(() => draftOf(tool));
  const [requestId, setRequestId] = useState(newRequestId);
  const action = useAction();
  const preview = usePreview(draft.sourceCode, draft.sourceType);
  const change = (changed: Partial<Draft>) => {
    setDraft({ ...draft, ...changed });
    setRequestId(newRequestId());
  };
  const changeType = (sourceType: SourceType) => {
    const isTemplate = draft.sourceCode === TEMPLATES[draft.sourceType];
    change({ sourceType, ...(isTemplate ? { sourceCode: TEMPLATES[sourceType] ?? "" } : {}) });
  };
  const save = () =>
    action.run(async () => {
      const fields = { ...fieldsOf(draft), defaultRequiresApproval: draft.asks };
      if (tool.id) {
        const updateMask = { paths: [...PATHS, "default_requires_approval"] };
        await tools.updateTool({ requestId, tool: { id: tool.id, ...fields }, updateMask });
        await onChange();
      } else {
        const made = await tools.createTool({ requestId, tool: { type: ToolType.CUSTOM, ...fields } });
        location.hash = linkToSection("tools", made.tool!.id);
      }
    });
  const isChanged = tool.id === "" || JSON.stringify(draft) !== JSON.stringify(draftOf(tool));
  return (
    <div class="editor">
      <form
        class="card stack"
        onSubmit={(event) => {
          event.preventDefault();
          void save();
        }}
      >
        <SourceField draft={draft} change={change} changeType={changeType} />
        <div class="columns">
          <TextField
            label="Packages"
            hint="Such as “requests, pydantic >=2,<3”."
            value={draft.packages}
            onChange={(packages) => change({ packages })}
          />
          <TextField
            label="Hosts that it may connect to"
            hint="Such as “api.example.com”. Others are refused."
            value={draft.hosts}
            onChange={(hosts) => change({ hosts })}
          />
        </div>
        <PackagesLine tool={tool} />
        <div class="buttons">
          <Check checked={draft.asks} onChange={(asks) => change({ asks })}>
            Ask a person before each call
          </Check>
          <span class="spacer" />
          <button type="submit" class="primary" disabled={action.busy || !isChanged}>
            {tool.id ? "Save" : "Create tool"}
          </button>
        </div>
        <ProblemBox problem={action.problem} />
      </form>
      <div class="stack">
        <Preview preview={preview} />
        <Trial draft={draft} schema={preview.schema} />
      </div>
    </div>
  );
}

interface SourceFieldProps {
  draft: Draft;
  change: (changed: Partial<Draft>) => void;
  changeType: (type: SourceType) => void;
}

function SourceField({ draft, change, changeType }: SourceFieldProps) {
  return (
    <div class="field">
      <div class="buttons">
        <label for="source" class="label">
          Source
        </label>
        <span class="spacer" />
        <select
          class="narrow"
          aria-label="Language"
          value={draft.sourceType}
          onChange={(event) => changeType(Number(event.currentTarget.value))}
        >
          <option value={SourceType.PYTHON}>Python</option>
          <option value={SourceType.TYPESCRIPT}>TypeScript</option>
        </select>
      </div>
      <textarea
        id="source"
        class="source"
        rows={22}
        spellcheck={false}
        autocapitalize="off"
        autocomplete="off"
        value={draft.sourceCode}
        onInput={(event) => change({ sourceCode: event.currentTarget.value })}
        onKeyDown={keepIndentation}
      />
      <p class="hint">The last function at the top level is the tool. Its docstring and types make the schema.</p>
    </div>
  );
}

/** Enter begins the next line as deep as this one. Tab leaves the field, so that the keyboard is not caught in it. */
function keepIndentation(event: KeyboardEvent) {
  const area = event.currentTarget;
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || !(area instanceof HTMLTextAreaElement)) {
    return;
  }
  const line = area.value.slice(0, area.selectionStart).split("\n").at(-1) ?? "";
  const indent = (/^\s*/.exec(line)?.[0] ?? "") + (/[:{[(]\s*$/.test(line) ? (line.includes("{") ? "  " : "    ") : "");
  if (indent) {
    event.preventDefault();
    area.setRangeText(`\n${indent}`, area.selectionStart, area.selectionEnd, "end");
    area.dispatchEvent(new Event("input", { bubbles: true }));
  }
}

function PackagesLine({ tool }: { tool: Tool }) {
  const packages = tool.packages;
  if (!packages) {
    return null;
  }
  const isFailed = packages.state === PackagesState.FAILED;
  const locked = packages.locked.map(({ name, version }) => `${name} ${version ?? ""}`.trim()).join(", ");
  return (
    <p class={isFailed ? "problem" : "hint"}>
      Packages: {words(PackagesState[packages.state])}
      {packages.error ? `. ${packages.error}` : locked && `: ${locked}`}
    </p>
  );
}

interface SchemaPreview {
  /** Of the last source that has one. */
  schema: string;
  problem: Problem | undefined;
}

/** The schema of the source, a moment after the last change. */
function usePreview(sourceCode: string, sourceType: SourceType): SchemaPreview {
  const [preview, setPreview] = useState<SchemaPreview>({ schema: "", problem: undefined });
  useEffect(() => {
    const controller = new AbortController();
    const ask = async () => {
      try {
        const { jsonSchema } = await tools.generateSchema({ sourceCode, sourceType }, { signal: controller.signal });
        setPreview({ schema: jsonSchema, problem: undefined });
      } catch (error) {
        if (!controller.signal.aborted) {
          setPreview(({ schema }) => ({ schema, problem: problemOf(error) }));
        }
      }
    };
    const timer = setTimeout(() => void ask(), preview.schema ? PREVIEW_MS : 0);
    return () => (clearTimeout(timer), controller.abort());
  }, [sourceCode, sourceType]);
  return preview;
}

function Preview({ preview: { schema, problem } }: { preview: SchemaPreview }) {
  const parsed = parseSchema(schema);
  return (
    <section class="card stack" aria-labelledby="schema-title">
      <h2 id="schema-title">What the model sees</h2>
      <ProblemBox problem={problem} />
      {parsed && (
        <>
          {problem && <p class="muted">Of the last source that has a schema:</p>}
          <p class="text">
            <code class="tool">{parsed.name}</code> {parsed.description}
          </p>
          <Parameters schema={schema} />
          <details>
            <summary class="muted">JSON schema</summary>
            <Json text={schema} label="JSON schema" />
          </details>
        </>
      )}
    </section>
  );
}

function Parameters({ schema }: { schema: string }) {
  const parameters = parseSchema(schema)?.parameters ?? [];
  if (parameters.length === 0) {
    return <p class="muted">No parameters.</p>;
  }
  return (
    <dl class="parameters">
      {parameters.map(({ name, type, description, isRequired }) => (
        <div key={name}>
          <dt>
            <code>{name}</code> <span class="muted">{isRequired ? type : `${type}, optional`}</span>
          </dt>
          {description && <dd>{description}</dd>}
        </div>
      ))}
    </dl>
  );
}

function Trial({ draft, schema }: { draft: Draft; schema: string }) {
  const [typed, setTyped] = useState<string>();
  const [outcome, setOutcome] = useState<ExecuteToolResponse>();
  const action = useAction();
  const parsed = parseSchema(schema);
  const args = typed ?? (parsed ? exampleArguments(parsed) : "{}");
  const stopping = useRef(new AbortController());
  useEffect(() => () => stopping.current.abort(), []);
  const run = () =>
    action.run(async () => {
      setOutcome(undefined);
      stopping.current = new AbortController();
      const { signal } = stopping.current;
      const tool = { case: "adHoc" as const, value: fieldsOf(draft) };
      const request = { executionId: newRequestId(), tool, arguments: args };
      try {
        setOutcome(await executions.executeTool(request, { signal, timeoutMs: TRIAL_MS }));
      } catch (error) {
        if (!signal.aborted) {
          throw error;
        }
      }
    });
  return (
    <section class="card stack" aria-labelledby="trial-title">
      <header class="buttons">
        <h2 id="trial-title">Trial run</h2>
        <span class="spacer" />
        {action.busy ? (
          <button type="button" onClick={() => stopping.current.abort()}>
            Stop
          </button>
        ) : (
          <button type="button" disabled={!parsed} onClick={() => void run()}>
            Run
          </button>
        )}
      </header>
      <Field label="Arguments" hint="A JSON object. The tool runs in the sandbox, with the source as it is now; nothing is saved.">
        {(id) => (
          <textarea
            id={id}
            class="source"
            rows={Math.min(8, args.split("\n").length + 1)}
            spellcheck={false}
            value={args}
            onInput={(event) => setTyped(event.currentTarget.value)}
          />
        )}
      </Field>
      {action.busy && <Busy what="Running" />}
      <ProblemBox problem={action.problem} />
      {outcome && <Outcome outcome={outcome} />}
    </section>
  );
}

function Outcome({ outcome }: { outcome: ExecuteToolResponse }) {
  const isGood = outcome.status === ExecutionStatus.SUCCESS;
  const refused = outcome.connections.filter(({ refusal }) => refusal);
  const texts: [string, string][] = [
    ["Result", outcome.result],
    ["stdout", outcome.stdout],
    ["stderr", outcome.stderr],
  ];
  return (
    <div class="stack" role="status" aria-label="Outcome">
      <p>
        <span class={isGood ? "tag good" : "tag bad"}>{words(ExecutionStatus[outcome.status])}</span>{" "}
        <span class="muted">
          {outcome.duration && duration(milliseconds(outcome.duration))}
          {outcome.truncated && " · the result was cut"}
        </span>
      </p>
      {texts.map(([label, text]) =>
        text ? (
          <div key={label} class="stack tight">
            <h3>{label}</h3>
            <pre class="code" tabIndex={0} aria-label={label}>
              {text}
            </pre>
          </div>
        ) : null,
      )}
      {refused.map(({ host, port, refusal }) => (
        <p key={`${host}:${port}`} class="muted">
          The connection to {host}:{port} was refused: {words(refusal)}.
        </p>
      ))}
    </div>
  );
}
