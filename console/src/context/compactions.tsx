// Compactions of a conversation: what left the window, and the summary that took its place.

import { useState } from "preact/hooks";
import type { Agent, CompactionResult } from "../../gen/mnemesh/agents/v1/agents_pb";
import { type Step } from "../../gen/mnemesh/agents/v1/runs_pb";
import { type Message, Role } from "../../gen/mnemesh/types/v1/message_pb";
import { SortOrder } from "../../gen/mnemesh/types/v1/paging_pb";
import { newRequestId } from "../api";
import { agents, runs } from "../clients/agents";
import { messages } from "../clients/memory";
import { count, duration, messageText, milliseconds, number, textOf, words } from "../format";
import { Busy, ProblemBox, Time, useAction, useLoad } from "../parts";
import { linkTo } from "../route";

const SHOWN = 10;
const STEPS = 100;
/** How many of the messages that left the window are shown at most. */
const LEFT = 200;

interface PanelProps {
  agent: Agent;
  conversationId: string;
  /** The ids of the messages in the window. */
  windowIds: Set<string>;
  onChange: () => Promise<void>;
}

export function Compactions({ agent, conversationId, windowIds, onChange }: PanelProps) {
  const { value, problem, reload } = useLoad((signal) => load(agent, conversationId, signal), [agent.id, conversationId]);
  const refresh = async () => void (await Promise.all([reload(), onChange()]));
  return (
    <section class="stack" aria-labelledby="compactions-title">
      <h2 id="compactions-title">Compactions</h2>
      <Compact agent={agent} conversationId={conversationId} onDone={refresh} />
      <ProblemBox problem={problem} retry={reload} />
      {!value && !problem && <Busy what="Loading compactions" />}
      {value?.length === 0 && (
        <p class="muted">
          The window has not been compacted yet. When it is nearly full, older messages leave it, and a summary takes
          their place. They stay in recall.
        </p>
      )}
      {value?.map((each) => (
        <CompactionView
          key={each.summary.id}
          agent={agent}
          conversationId={conversationId}
          shown={each}
          isCurrent={windowIds.has(each.summary.id)}
          windowIds={windowIds}
        />
      ))}
    </section>
  );
}

interface Compaction {
  summary: Message;
  /** The summary before it; absent for the first. */
  earlier: Message | undefined;
  /** The calls of the summary model. */
  steps: Step[];
}

/** Returns the compactions of a conversation, the newest first: each has left its summary in the record. */
async function load(agent: Agent, conversationId: string, signal: AbortSignal): Promise<Compaction[]> {
  const conversation = { scope: { case: "conversationId" as const, value: conversationId } };
  const listed = { agentIds: [agent.id], conversation, roles: [Role.SUMMARY], pageSize: SHOWN + 1, order: SortOrder.DESCENDING };
  const stepped = { filter: { agentId: agent.id }, pageSize: STEPS, order: SortOrder.DESCENDING };
  const [{ messages: summaries }, { steps }] = await Promise.all([
    messages.listMessages(listed, { signal }),
    runs.listSteps(stepped, { signal }),
  ]);
  const calls = steps.filter((step) => step.origin && step.conversationId === conversationId);
  return summaries.slice(0, SHOWN).map((summary, index) => {
    const earlier = summaries[index + 1];
    return { summary, earlier, steps: calls.filter((step) => isBetween(step, earlier, summary)) };
  });
}

function isBetween(step: Step, earlier: Message | undefined, summary: Message): boolean {
  const ended = step.completionTime ? milliseconds(step.completionTime) : 0;
  const after = earlier?.createTime ? milliseconds(earlier.createTime) : 0;
  // The summary is written within the second in which its call ends.
  return ended > after && ended <= milliseconds(summary.createTime!) + 1000;
}

interface ViewProps {
  agent: Agent;
  conversationId: string;
  shown: Compaction;
  isCurrent: boolean;
  windowIds: Set<string>;
}

function CompactionView({ agent, conversationId, shown, isCurrent, windowIds }: ViewProps) {
  const [isOpen, setOpen] = useState(false);
  const { summary, steps } = shown;
  const spent = steps.reduce((sum, step) => sum + Number(step.usage?.totalTokens ?? 0), 0);
  const took = steps.reduce((sum, step) => sum + (step.modelDuration ? milliseconds(step.modelDuration) : 0), 0);
  return (
    <details class="card step" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span>{isCurrent ? "The summary in the window" : "An earlier summary"}</span>
        <span class="muted">
          <Time at={summary.createTime} /> · {count(textOf(summary.content).length, "character")}
          {took > 0 && ` · model ${duration(took)}`}
          {spent > 0 && ` · ${count(spent, "token")}`}
        </span>
      </summary>
      {isOpen && <BeforeAfter agent={agent} conversationId={conversationId} shown={shown} isCurrent={isCurrent} windowIds={windowIds} />}
    </details>
  );
}

/** What left the window, and what took its place. */
function BeforeAfter({ agent, conversationId, shown: { summary, earlier }, isCurrent, windowIds }: ViewProps) {
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const conversation = { scope: { case: "conversationId" as const, value: conversationId } };
      const untilSequenceId = summary.sequenceId - 1n;
      const request = { agentIds: [agent.id], conversation, untilSequenceId, afterSequenceId: earlier?.sequenceId };
      const found = await messages.listMessages({ ...request, pageSize: LEFT, order: SortOrder.DESCENDING }, { signal });
      const before = found.messages.filter(({ role, runId }) => role !== Role.SUMMARY && (role !== Role.SYSTEM || runId));
      return { before: before.reverse(), hasMore: found.nextPageToken !== "" };
    },
    [summary.id],
  );
  if (!value) {
    return problem ? <ProblemBox problem={problem} retry={reload} /> : <Busy what="Reading the messages" />;
  }
  const stayed = value.before.filter(({ id }) => isCurrent && windowIds.has(id));
  const left = value.before.filter(({ id }) => !isCurrent || !windowIds.has(id));
  return (
    <div class="before-after">
      <section aria-label="Before">
        <h3>Before: {count(left.length, "message")}</h3>
        {earlier && <Text title="earlier summary" text={textOf(earlier.content)} />}
        {value.hasMore && <p class="muted">Older ones are in the chat.</p>}
        {left.map((message) => (
          <Text
            key={message.id}
            title={words(Role[message.role])}
            text={messageText(message)}
            link={linkTo(agent.id, "chat", conversationId, message.id)}
          />
        ))}
      </section>
      <section aria-label="After">
        <h3>After: the summary{stayed.length > 0 && ` and ${count(stayed.length, "message")} that stayed`}</h3>
        <Text title="summary" text={textOf(summary.content)} />
        {stayed.map((message) => (
          <Text key={message.id} title={words(Role[message.role])} text={messageText(message)} />
        ))}
      </section>
    </div>
  );
}

function Text({ title, text, link }: { title: string; text: string; link?: string }) {
  return (
    <div class="piece">
      <p class="muted">{link ? <a href={link}>{title}</a> : title}</p>
      <pre class="code">{text}</pre>
    </div>
  );
}

/** Compacts the window now; or shows what that would do. */
function Compact({ agent, conversationId, onDone }: { agent: Agent; conversationId: string; onDone: () => Promise<void> }) {
  const [result, setResult] = useState<{ value: CompactionResult; isTrial: boolean }>();
  const action = useAction();
  const compact = (dryRun: boolean) =>
    action.run(async () => {
      setResult(undefined);
      const request = { requestId: newRequestId(), agentId: agent.id, conversationId, dryRun };
      const answer = await agents.compactConversation(request);
      setResult(answer.result && { value: answer.result, isTrial: dryRun });
      if (!dryRun) {
        await onDone();
      }
    });
  return (
    <div class="card stack">
      <div class="buttons">
        <button type="button" disabled={action.busy} onClick={() => void compact(true)}>
          Try a compaction
        </button>
        <button type="button" disabled={action.busy} onClick={() => void compact(false)}>
          Compact now
        </button>
        <span class="hint">A trial changes nothing. Both ask the model for a summary.</span>
      </div>
      {action.busy && <Busy what="The model writes a summary" />}
      <ProblemBox problem={action.problem} />
      {result && <Result value={result.value} isTrial={result.isTrial} />}
    </div>
  );
}

function Result({ value, isTrial }: { value: CompactionResult; isTrial: boolean }) {
  const most = Math.max(value.tokensBefore, value.tokensAfter, 1);
  const rows = [
    ["Before", value.tokensBefore, value.messagesBefore],
    ["After", value.tokensAfter, value.messagesAfter],
  ] as const;
  return (
    <div class="stack" role="status">
      <p>{isTrial ? "A compaction would change the window so:" : "The window has been compacted:"}</p>
      <ul class="compared">
        {rows.map(([title, tokens, held]) => (
          <li key={title}>
            <span class="muted">{title}</span>
            <span class="track" aria-hidden="true">
              <span class="part kind-7" style={{ width: `${(100 * tokens) / most}%` }} />
            </span>
            <span class="figure">
              {number(tokens)} tokens, {count(held, "message")}
            </span>
          </li>
        ))}
      </ul>
      <pre class="code" tabIndex={0} aria-label="Summary">
        {value.summary}
      </pre>
    </div>
  );
}
