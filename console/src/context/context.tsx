// The panel Context: what the model gets, by section, with its tokens; and the exact requests and answers of steps.

import { useState } from "preact/hooks";
import {
  type Agent,
  type ContextSection,
  ContextSectionKind as Kind,
  type ContextWindow,
} from "../../gen/mnemesh/agents/v1/agents_pb";
import { type Step, StepStatus } from "../../gen/mnemesh/agents/v1/runs_pb";
import { Role } from "../../gen/mnemesh/types/v1/message_pb";
import { SortOrder } from "../../gen/mnemesh/types/v1/paging_pb";
import { problemOfRun } from "../api";
import { agents, runs } from "../clients/agents";
import { count, duration, messageText, milliseconds, number, words } from "../format";
import { Busy, Empty, Field, Json, ProblemBox, Time, useAction, useLoad } from "../parts";
import { Compactions } from "./compactions";
import "./context.css";

const STEPS = 20;
const TITLES: Record<Kind, string> = {
  [Kind.UNSPECIFIED]: "Other",
  [Kind.SYSTEM_PROMPT]: "System prompt",
  [Kind.CORE_MEMORY]: "Core memory",
  [Kind.TOOL_RULES]: "Tool rules",
  [Kind.DIRECTORIES]: "Folders and files",
  [Kind.MEMORY_METADATA]: "Memory metadata",
  [Kind.SUMMARY]: "Summary of older messages",
  [Kind.MESSAGES]: "Messages",
  [Kind.TOOL_SCHEMAS]: "Tools",
};

/** What a section has a number of. The others are one text. */
const UNITS: Partial<Record<Kind, [string, string?]>> = {
  [Kind.CORE_MEMORY]: ["block"],
  [Kind.TOOL_RULES]: ["rule"],
  [Kind.DIRECTORIES]: ["folder"],
  [Kind.SUMMARY]: ["summary", "summaries"],
  [Kind.MESSAGES]: ["message"],
  [Kind.TOOL_SCHEMAS]: ["tool"],
};

interface PanelProps {
  agent: Agent;
  conversationId: string;
}

export function Context({ agent, conversationId }: PanelProps) {
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const found = await agents.getContextWindow({ agentId: agent.id, conversationId }, { signal });
      return found.contextWindow!;
    },
    [agent.id, conversationId],
  );
  return (
    <div class="panel">
      <div class="page">
        <header class="page-head">
          <h2>What the model sees</h2>
          <button type="button" onClick={() => void reload()}>
            Refresh
          </button>
        </header>
        <ProblemBox problem={problem} retry={reload} />
        {!value && !problem && <Busy what="Reading the context window" />}
        {value && <Window shown={value} />}
        <Compactions
          agent={agent}
          conversationId={conversationId}
          windowIds={new Set(value?.messages.map(({ id }) => id))}
          onChange={reload}
        />
        <Preview agent={agent} conversationId={conversationId} />
        <Steps agent={agent} />
      </div>
    </div>
  );
}

/** The sections as one bar against the limit of the model, and as a list that opens their text. */
function Window({ shown }: { shown: ContextWindow }) {
  const [opened, setOpened] = useState<Kind>();
  const sections = shown.sections.filter((section) => section.tokens > 0);
  const limit = Math.max(shown.contextWindowSize, shown.totalTokens, 1);
  const toggle = (kind: Kind) => setOpened(opened === kind ? undefined : kind);
  return (
    <section class="card window" aria-label="Context window">
      <p>
        <strong>{number(shown.totalTokens)}</strong> of {number(shown.contextWindowSize)} tokens (
        {((100 * shown.totalTokens) / limit).toFixed(1)} %)
        <span class="muted">
          {" "}
          · {count(Number(shown.recallMessageCount), "message")} in recall ·{" "}
          {count(Number(shown.archivalPassageCount), "passage")} in archives
        </span>
      </p>
      <div class="meter" aria-hidden="true">
        {sections.map((section) => (
          <span
            key={section.kind}
            class={`part kind-${section.kind}`}
            style={{ width: `${(100 * section.tokens) / limit}%` }}
          />
        ))}
      </div>
      <ul class="sections">
        {sections.map((section) => {
          const unit = UNITS[section.kind];
          return (
          <li key={section.kind}>
            <button type="button" aria-expanded={opened === section.kind} onClick={() => toggle(section.kind)}>
              <span class={`swatch kind-${section.kind}`} aria-hidden="true" />
              <span class="section-title">
                {TITLES[section.kind]}
                {section.count > 0 && unit && <span class="muted"> {count(section.count, ...unit)}</span>}
              </span>
              <span class="share" aria-hidden="true">
                <span
                  class={`part kind-${section.kind}`}
                  style={{ width: `${(100 * section.tokens) / Math.max(shown.totalTokens, 1)}%` }}
                />
              </span>
              <span class="figure">{count(section.tokens, "token")}</span>
            </button>
            {opened === section.kind && <SectionText section={section} shown={shown} />}
          </li>
          );
        })}
      </ul>
    </section>
  );
}

function SectionText({ section, shown }: { section: ContextSection; shown: ContextWindow }) {
  const label = TITLES[section.kind];
  if (section.kind === Kind.MESSAGES) {
    return (
      <ol class="messages">
        {shown.messages.slice(1).map((message) => (
          <li key={message.id}>
            <h3>{words(Role[message.role])}</h3>
            <pre class="code">{messageText(message)}</pre>
          </li>
        ))}
      </ol>
    );
  }
  if (section.kind === Kind.TOOL_SCHEMAS) {
    return (
      <ol class="messages">
        {shown.toolSchemas.map((schema, index) => (
          <li key={index}>
            <Json text={schema} label={`Tool ${index + 1}`} />
          </li>
        ))}
      </ol>
    );
  }
  return (
    <pre class="code" tabIndex={0} aria-label={label}>
      {section.text || "This section has no text of its own."}
    </pre>
  );
}

function Preview({ agent, conversationId }: PanelProps) {
  const [text, setText] = useState("");
  const [body, setBody] = useState("");
  const action = useAction();
  const preview = () =>
    action.run(async () => {
      const messages = [{ content: [{ part: { case: "text" as const, value: { text } } }] }];
      setBody((await agents.previewRequest({ agentId: agent.id, conversationId, messages })).requestBody);
    });
  return (
    <section class="card stack" aria-labelledby="preview-title">
      <h2 id="preview-title">What a message would send</h2>
      <form class="stack" onSubmit={(event) => (event.preventDefault(), void preview())}>
        <Field label="Message" hint="Shows the request to the provider. Nothing is stored or sent.">
          {(id) => (
            <textarea id={id} rows={2} required value={text} onInput={(event) => setText(event.currentTarget.value)} />
          )}
        </Field>
        <div class="buttons">
          <button type="submit" disabled={action.busy || !text.trim()}>
            Preview the request
          </button>
        </div>
      </form>
      <ProblemBox problem={action.problem} />
      {body && <Json text={body} label="Request to the provider" />}
    </section>
  );
}

function Steps({ agent }: { agent: Agent }) {
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const request = { filter: { agentId: agent.id }, pageSize: STEPS, order: SortOrder.DESCENDING };
      return (await runs.listSteps(request, { signal })).steps;
    },
    [agent.id],
  );
  return (
    <section class="stack" aria-labelledby="steps-title">
      <h2 id="steps-title">Requests and answers of the newest steps</h2>
      <ProblemBox problem={problem} retry={reload} />
      {value?.length === 0 && <Empty title="The agent has not called its model yet. Send it a message in the chat." />}
      {value?.map((step) => <StepTrace key={step.id} step={step} />)}
    </section>
  );
}

/** A step; its request and its answer are read when it is opened. */
export function StepTrace({ step }: { step: Step }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details class="card step" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span>
          {step.origin ? words(step.origin) : `Step ${step.number}`} <span class="agent-model">{step.model}</span>
        </span>
        <span class="muted">
          <Time at={step.createTime} />
          {step.modelDuration && ` · ${duration(milliseconds(step.modelDuration))}`}
          {step.usage?.totalTokens !== undefined && ` · ${count(Number(step.usage.totalTokens), "token")}`}
        </span>
        {step.status !== StepStatus.SUCCESS && (
          <span class={`tag ${step.status === StepStatus.FAILED ? "bad" : ""}`}>{words(StepStatus[step.status])}</span>
        )}
      </summary>
      {step.error && <ProblemBox problem={problemOfRun(step.error)} />}
      {isOpen && <Trace stepId={step.id} />}
    </details>
  );
}

function Trace({ stepId }: { stepId: string }) {
  const { value, problem, reload } = useLoad(
    async (signal) => (await runs.getStepTrace({ stepId }, { signal })).trace!,
    [stepId],
  );
  if (!value) {
    return problem ? <ProblemBox problem={problem} retry={reload} /> : <Busy what="Reading the request" />;
  }
  return (
    <>
      <h3>Request</h3>
      <Json text={value.request} label="Request to the provider" />
      <h3>Answer</h3>
      <Json text={value.response} label="Answer of the provider" />
    </>
  );
}
