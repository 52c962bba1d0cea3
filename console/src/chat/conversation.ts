// A conversation in the page: what is stored, and the run that is going on.

import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { signal } from "@preact/signals";
import { type Delta, OnBusy, type Run, type RunError, type RunEvent, RunStatus } from "../../gen/mnemesh/agents/v1/runs_pb";
import { StopReason } from "../../gen/mnemesh/agents/v1/agents_pb";
import type { ListMessagesResponse } from "../../gen/mnemesh/recall/v1/messages_service_pb";
import {
  type ApprovalDecision,
  ApprovalDecisionSchema,
  ApproveSchema,
  type ContentPart,
  ContentPartSchema,
  type Message,
  type ToolCall,
  ToolReturnSchema,
  ToolReturnStatus,
} from "../../gen/mnemesh/types/v1/message_pb";
import { SortOrder } from "../../gen/mnemesh/types/v1/paging_pb";
import { newRequestId, type Problem, problemOf, problemOfRun } from "../api";
import { conversations, runs } from "../clients/agents";
import { messages } from "../clients/memory";
import { number, words } from "../format";
import { addEvent, addMessage, type Asked, type Entries, type Entry, imagesOf, type Said } from "./entries";
import { follow, start } from "./follow";

const PAGE = 50;
/** What one call returns at most: a window seldom has more messages. */
const MOST_SHARED = 1000;
const RUN_CONFIG = { streamTokens: true, onBusy: OnBusy.WAIT };
const ACTIVE = [RunStatus.CREATED, RunStatus.RUNNING];
/** Stops that are not an ordinary end, with what a person may want to know. */
const STOPS: Partial<Record<StopReason, string>> = {
  [StopReason.CANCELLED]: "The run was cancelled.",
  [StopReason.MAX_STEPS]: "The run reached its limit of steps.",
  [StopReason.MAX_TOKENS_EXCEEDED]: "The answer reached the model's limit of tokens.",
  [StopReason.CONTENT_FILTER]: "The provider's content filter cut the answer off.",
};

/** An image to send. */
export interface Image {
  name: string;
  mediaType: string;
  data: Uint8Array<ArrayBuffer>;
}

/** What a person decides about a call. A tool of the client is never approved: its result is returned. */
export type Decision =
  | { kind: "approve" }
  | { kind: "deny"; reason: string }
  | { kind: "return"; call: ToolCall; text: string; ok: boolean };

/** By the id of the call. */
export type Decisions = Record<string, Decision>;

/** Which messages a page has. */
interface Part {
  afterSequenceId?: bigint;
  untilSequenceId?: bigint;
  pageToken: string;
  order: SortOrder;
}

/** A message that is not sent yet. */
export interface Draft {
  text: string;
  images: Image[];
}

/** A message on its way. */
interface Unsent extends Draft {
  requestId: string;
}

/** The messages by conversation that the mesh has not taken yet. Another panel does not lose them. */
const outbox = new Map<string, Unsent>();
addEventListener("beforeunload", (event) => {
  if (outbox.size) {
    event.preventDefault();
  }
});

/** The drafts of this page by conversation: another panel, or a message that was taken back, does not lose them. */
export const drafts = new Map<string, Draft>();

export class ConversationState {
  readonly entries = signal<Entry[]>([]);
  readonly isLoaded = signal(false);
  readonly hasOlder = signal(false);
  /** Whether an earlier part is shown, after which further messages follow. */
  readonly hasNewer = signal(false);
  /** The run that goes on; empty before it is accepted, undefined if there is none. */
  readonly running = signal<string | undefined>(undefined);
  readonly isLost = signal(false);
  readonly problem = signal<Problem | undefined>(undefined);
  readonly usage = signal("");

  private shown: Entries = new Map();
  private stored: Message[] = [];
  private olderToken = "";
  private newerToken = "";
  /** The place in the record that an earlier part is around. */
  private around: bigint | undefined;
  private readonly closing = new AbortController();
  private isDrawing = false;
  private isDelivering = false;
  /** The newest run that this page knows. */
  private newestRunId = "";
  /** The ids of the runs whose events are shown as they come. */
  private readonly followed = new Set<string>();
  /** What can be done with the message that waits for the mesh. */
  private unsent: { tryNow: () => void; discard: () => void } | undefined;

  constructor(
    readonly agentId: string,
    readonly conversationId: string,
    /** The message to show; empty shows the newest ones. */
    readonly targetId = "",
  ) {}

  /** Loads the newest messages, or those around one, and continues with the run that goes on, if there is one. */
  async open(): Promise<void> {
    const waiting = outbox.get(this.conversationId);
    if (waiting && !this.isDelivering) {
      this.showUnsent(waiting, "again");
    }
    try {
      this.problem.value = undefined;
      // Before the messages: a run that ends meanwhile is then among them.
      const newest = await this.newestRuns();
      await (this.targetId ? this.loadAround() : this.loadOlder());
      this.isLoaded.value = true;
      if (!this.hasNewer.value) {
        this.newestRunId = newest[0]?.id ?? "";
        await this.goOn(newest);
        // It may have been discarded, or is being sent from here.
        const unsent = outbox.get(this.conversationId);
        if (unsent && !this.isDelivering) {
          await this.deliver(unsent);
        }
      }
    } catch (error) {
      this.fail(error);
    }
  }

  close(): void {
    this.closing.abort();
  }

  private async newestRuns(): Promise<Run[]> {
    const filter = { agentIds: [this.agentId], conversationId: this.conversationId };
    const request = { filter, pageSize: 10, order: SortOrder.DESCENDING };
    return (await runs.listRuns(request, { signal: this.closing.signal })).runs;
  }

  /** Whether a run that this page does not know was started here meanwhile: by another page, a client or a schedule. */
  async isOutdated(): Promise<boolean> {
    const isIdle = () => this.isLoaded.value && this.running.value === undefined && !this.isDelivering && !this.hasNewer.value;
    const newest = isIdle() ? (await this.newestRuns())[0]?.id : undefined;
    return newest !== undefined && newest !== this.newestRunId && isIdle();
  }

  /** Shows how the newest run ended, and follows those that go on. */
  private async goOn(newest: Run[]): Promise<void> {
    if (newest[0]?.status === RunStatus.FAILED) {
      this.addFailure(newest[0].id, newest[0].error);
      this.draw();
    }
    for (const run of newest.reverse().filter((each) => ACTIVE.includes(each.status))) {
      await this.follow({ runId: run.id });
    }
  }

  /** Loads the page of messages before those that are shown. */
  async loadOlder(): Promise<void> {
    const found = await this.page({ untilSequenceId: this.around, pageToken: this.olderToken, order: SortOrder.DESCENDING });
    this.olderToken = found.nextPageToken;
    this.hasOlder.value = found.nextPageToken !== "";
    this.stored = [...found.messages.reverse(), ...this.stored];
    if (!this.olderToken) {
      this.stored = [...(await this.shared()), ...this.stored];
    }
    this.rebuild();
  }

  /** Loads the page of messages after an earlier part. With the last one, the page continues with what goes on. */
  async loadNewer(): Promise<void> {
    const newest = await this.newestRuns();
    await this.addNewer();
    this.rebuild();
    if (!this.hasNewer.value) {
      this.newestRunId = newest[0]?.id ?? "";
      void this.goOn(newest).catch((error: unknown) => this.fail(error));
    }
  }

  /** Loads the messages around `targetId`. */
  private async loadAround(): Promise<void> {
    const request = { messageIds: [this.targetId] };
    const [target] = (await messages.getMessages(request, { signal: this.closing.signal })).messages;
    this.around = target?.sequenceId;
    if (target) {
      await this.addNewer();
    }
    await this.loadOlder();
  }

  private async addNewer(): Promise<void> {
    const found = await this.page({ afterSequenceId: this.around, pageToken: this.newerToken, order: SortOrder.ASCENDING });
    this.newerToken = found.nextPageToken;
    this.hasNewer.value = found.nextPageToken !== "";
    this.stored = [...this.stored, ...found.messages];
  }

  private page(part: Part): Promise<ListMessagesResponse> {
    const conversation = { scope: { case: "conversationId" as const, value: this.conversationId } };
    const request = { agentIds: [this.agentId], conversation, pageSize: PAGE, ...part };
    return messages.listMessages(request, { signal: this.closing.signal });
  }

  /** Returns the messages that a fork shares with the conversation that it was made from. */
  private async shared(): Promise<Message[]> {
    const request = { conversationId: this.conversationId, includeMessageIds: true };
    const { conversation } = await conversations.getConversation(request, { signal: this.closing.signal });
    if (!conversation?.forkedFromId) {
      return [];
    }
    const found: Message[] = [];
    let pageToken = "";
    do {
      const ids = { messageIds: conversation.messageIds.slice(1, MOST_SHARED + 1), pageToken };
      const page = await messages.getMessages(ids, { signal: this.closing.signal });
      found.push(...page.messages.filter((message) => message.conversationId !== this.conversationId));
      pageToken = page.nextPageToken;
    } while (pageToken);
    return found;
  }

  /** Shows a message, and sends it. Returns false if the mesh refused it. */
  send(text: string, images: Image[]): Promise<boolean> {
    const unsent = { requestId: newRequestId(), text, images };
    outbox.set(this.conversationId, unsent);
    this.showUnsent(unsent, "first");
    return this.deliver(unsent);
  }

  /** Sends a message until the mesh takes it. However often that is tried, it is one run. */
  private async deliver(unsent: Unsent): Promise<boolean> {
    const { requestId, text, images } = unsent;
    const content = [
      ...images.map(({ data, mediaType }) => imagePart(data, mediaType)),
      ...(text ? [create(ContentPartSchema, { part: { case: "text", value: { text } } })] : []),
    ];
    const messages = [{ content, otid: requestId }];
    const request = { requestId, agentId: this.agentId, conversationId: this.conversationId, messages, config: RUN_CONFIG };
    const leaving = new AbortController();
    const signal = AbortSignal.any([this.closing.signal, leaving.signal]);
    const onWait = (tryNow: () => void) => {
      this.unsent = { tryNow, discard: () => leaving.abort() };
      this.showUnsent(unsent, "again");
    };
    this.forgetProblem();
    this.running.value = "";
    this.isDelivering = true;
    try {
      const runId = await start(request, { signal, onWait });
      outbox.delete(this.conversationId);
      this.showUnsent(unsent);
      await this.follow({ runId });
      return true;
    } catch (error) {
      this.running.value = undefined;
      if (this.closing.signal.aborted) {
        return true;
      }
      outbox.delete(this.conversationId);
      this.shown.delete(requestId);
      this.draw();
      if (!leaving.signal.aborted) {
        this.fail(error);
      }
      return leaving.signal.aborted;
    } finally {
      this.unsent = undefined;
      this.isDelivering = false;
    }
  }

  private showUnsent({ requestId, text, images }: Unsent, sending?: Said["sending"]): void {
    const shown = imagesOf(images.map(({ data, mediaType }) => imagePart(data, mediaType)));
    const said = { kind: "user" as const, text, images: shown, sending };
    // The event of the message has its otid, and takes its place.
    this.shown.set(requestId, { key: requestId, messageId: "", runId: "", ...said });
    this.draw();
  }

  /** Tries at once to send the message that waits. */
  tryNow(): void {
    this.unsent?.tryNow();
  }

  discard(): void {
    this.unsent?.discard();
  }

  async answer(asked: Asked, decisions: Decisions): Promise<void> {
    const isOwn = !asked.agentId || asked.agentId === this.agentId;
    const request = {
      requestId: newRequestId(),
      agentId: asked.agentId || this.agentId,
      ...(isOwn ? { conversationId: this.conversationId } : {}),
      approvalRequestId: asked.messageId,
      decisions: asked.calls.map((call) => decided(call, decisions[call.id])),
      config: isOwn ? RUN_CONFIG : undefined,
    };
    if (isOwn) {
      await this.follow({ open: (signal) => runs.answerApproval(request, { signal }) });
      return;
    }
    // The run of this conversation waits for the other agent, and shows what follows.
    for await (const { event } of runs.answerApproval(request, { signal: this.closing.signal })) {
      if (event?.event.case === "message") {
        addEvent(this.shown, event.runId, asked.agentId, event.event.value);
        this.draw();
      }
    }
  }

  /** Returns the names of the tools that the client of a waiting run runs itself. */
  async clientTools(asked: Asked): Promise<Set<string>> {
    if ((asked.agentId && asked.agentId !== this.agentId) || !asked.runId) {
      return new Set();
    }
    const { run } = await runs.getRun({ runId: asked.runId }, { signal: this.closing.signal });
    return new Set(run?.config?.clientTools.map(({ name }) => name));
  }

  async cancel(): Promise<void> {
    const runId = this.running.value;
    if (!runId) {
      return;
    }
    const target = { case: "runs" as const, value: { runIds: [runId] } };
    await runs.cancelRuns({ requestId: newRequestId(), target });
  }

  async retry(runId: string): Promise<void> {
    try {
      const { run } = await runs.retryRun({ requestId: newRequestId(), runId });
      this.shown.delete(`failure/${runId}`);
      await this.follow({ runId: run!.id });
    } catch (error) {
      this.fail(error);
    }
  }

  /** Creates a conversation that shares the messages up to one of them. Returns its id. */
  async fork(untilMessageId: string): Promise<string | undefined> {
    try {
      const request = { requestId: newRequestId(), conversationId: this.conversationId, untilMessageId };
      const { conversation } = await conversations.forkConversation(request, { signal: this.closing.signal });
      return conversation?.id;
    } catch (error) {
      this.fail(error);
      return undefined;
    }
  }

  /**
   * Takes the last message of the user back: creates a conversation that ends before it, with the message as a draft.
   * Returns the id of that conversation. This one and the agent's memory stay as they are.
   */
  async undo(): Promise<string | undefined> {
    const last = this.lastAsked();
    if (!last) {
      return undefined;
    }
    try {
      const request = { conversationId: this.conversationId, includeMessageIds: true };
      const { conversation } = await conversations.getConversation(request, { signal: this.closing.signal });
      const ids = conversation?.messageIds ?? [];
      const at = ids.indexOf(last.messageId);
      if (at < 1) {
        const message = "Your last message is not in the context window, so no conversation can end before it.";
        this.problem.value = { reason: "", message, next: "Start a new conversation." };
        return undefined;
      }
      const [message] = (await messages.getMessages({ messageIds: [last.messageId] })).messages;
      // Only the system message is before the first one, and every conversation has its own.
      const newId = at > 1 ? await this.fork(ids[at - 1]!) : await this.createSibling();
      if (newId) {
        drafts.set(newId, draftOf(message?.content ?? [], last.text));
      }
      return newId;
    } catch (error) {
      this.fail(error);
      return undefined;
    }
  }

  /** Returns what the user said last; undefined if nothing. */
  lastAsked(): Said | undefined {
    return this.entries.value.findLast((entry): entry is Said => entry.kind === "user" && entry.messageId !== "");
  }

  /** Creates a conversation of the same agent without messages. Returns its id. */
  private async createSibling(): Promise<string | undefined> {
    const request = { requestId: newRequestId(), conversation: { agentId: this.agentId } };
    return (await conversations.createConversation(request, { signal: this.closing.signal })).conversation?.id;
  }

  /** Shows a run up to its end. Returns false if it was refused. */
  private async follow(source: { open?: Parameters<typeof follow>[0]["open"]; runId?: string }): Promise<boolean> {
    const { runId = "" } = source;
    if (this.followed.has(runId)) {
      return true;
    }
    this.forgetProblem();
    this.running.value = runId;
    if (runId) {
      this.followed.add(runId);
      // The stream begins with the first event of the run, so what is stored of it would be shown twice.
      this.stored = this.stored.filter((message) => message.runId !== runId);
      for (const [key, entry] of this.shown) {
        if (entry.runId === runId) {
          this.shown.delete(key);
        }
      }
      this.rebuild();
    }
    try {
      const onLost = (isLost: boolean) => (this.isLost.value = isLost);
      for await (const event of follow({ ...source, signal: this.closing.signal, onLost })) {
        this.running.value = event.runId;
        this.newestRunId = event.runId;
        this.take(event);
      }
      return true;
    } catch (error) {
      this.fail(error);
      // A call that ended with the panel may have arrived.
      return this.running.value !== "" || ConnectError.from(error).code === Code.Canceled;
    } finally {
      this.followed.delete(runId);
      this.running.value = undefined;
      this.isLost.value = false;
    }
  }

  private take(event: RunEvent): void {
    const { runId, event: content } = event;
    switch (content.case) {
      case "message":
        addEvent(this.shown, runId, event.agentId ?? "", content.value);
        break;
      case "delta":
        this.addDelta(runId, content.value);
        break;
      case "stepStarted":
        this.dropLive();
        break;
      case "toolProgress": {
        const call = this.shown.get(`call/${content.value.toolCallId}`);
        if (call?.kind === "call" && !call.result) {
          const { progress, total, message } = content.value;
          const share = total ? `${Math.round((100 * progress) / total)} %` : number(progress);
          this.shown.set(call.key, { ...call, progress: [share, message].filter(Boolean).join(", ") });
        }
        break;
      }
      case "compaction": {
        const { tokensBefore = 0, tokensAfter = 0 } = content.value.result ?? {};
        this.note(runId, `Older messages were summarized: ${number(tokensBefore)} tokens became ${number(tokensAfter)}.`);
        break;
      }
      case "error":
        this.addFailure(runId, content.value.error);
        break;
      case "stop":
        this.dropLive();
        this.addStop(runId, content.value.reason, content.value.status);
        break;
      case "usage":
        this.usage.value = content.value.contextTokens ? `${number(content.value.contextTokens)} tokens of context` : "";
        break;
    }
    this.draw();
  }

  private addFailure(runId: string, error: RunError | undefined): void {
    const key = `failure/${runId}`;
    this.shown.set(key, { key, kind: "failure", messageId: "", runId, problem: problemOfRun(error) });
  }

  private addStop(runId: string, reason: StopReason, status: RunStatus): void {
    const text = STOPS[reason];
    if (text) {
      this.note(runId, text);
    } else if (status === RunStatus.FAILED && !this.shown.has(`failure/${runId}`)) {
      this.note(runId, `The run failed: ${words(StopReason[reason])}.`);
    }
  }

  private note(runId: string, text: string): void {
    const key = `note/${runId}/${this.shown.size}`;
    this.shown.set(key, { key, kind: "note", messageId: "", runId, text, images: [] });
  }

  /** Adds tokens. The offset says how much of the text was sent before; the complete message replaces all of it. */
  private addDelta(runId: string, { messageId, otid, offset, delta }: Delta): void {
    if (delta.case === "toolCall") {
      const key = `call/${delta.value.toolCallId}`;
      const known = this.shown.get(key);
      const call = known?.kind === "call" ? known : undefined;
      const { text: input, characters } = joined(call?.input, call?.characters, offset, delta.value.arguments);
      const name = delta.value.name || call?.name || "";
      this.shown.set(key, {
        ...{ key, kind: "call", messageId, runId, live: true },
        ...{ callId: delta.value.toolCallId, name, input, characters, result: call?.result },
      });
    } else if (delta.case) {
      const known = this.shown.get(otid);
      const said = known && "text" in known ? known : undefined;
      const kind = delta.case === "reasoningText" ? "reasoning" : "assistant";
      const text = joined(said?.text, said?.characters, offset, delta.value);
      this.shown.set(otid, { key: otid, kind, messageId, runId, live: true, ...text, images: [] });
    }
  }

  /** Forgets tokens whose message did not arrive: another attempt replaces them. */
  private dropLive(): void {
    for (const [key, entry] of this.shown) {
      if (entry.live) {
        this.shown.delete(key);
      }
    }
  }

  /** Shows stored messages, then what runs added since the page was opened. */
  private rebuild(): void {
    const built: Entries = new Map();
    const [first] = this.stored;
    // The first message of the record is the system message: the panel Context shows it.
    const skipped = !this.olderToken && first && first.runId === undefined ? first.id : "";
    for (const message of this.stored) {
      if (message.id !== skipped || message.content.length === 0) {
        addMessage(built, message);
      }
    }
    const known = new Set(this.stored.map((message) => message.id));
    for (const [key, entry] of this.shown) {
      if (!built.has(key) && !(entry.messageId && known.has(entry.messageId))) {
        built.set(key, entry);
      }
    }
    this.shown = built;
    this.draw();
  }

  /** Draws at most once per frame, however fast tokens arrive. */
  private draw(): void {
    if (this.isDrawing) {
      return;
    }
    this.isDrawing = true;
    requestAnimationFrame(() => {
      this.isDrawing = false;
      this.entries.value = [...this.shown.values()];
    });
  }

  /** What kept the conversation from loading stays, because the panel tries that again. */
  private forgetProblem(): void {
    if (this.isLoaded.value) {
      this.problem.value = undefined;
    }
  }

  private fail(error: unknown): void {
    if (!this.closing.signal.aborted) {
      this.problem.value = problemOf(error);
    }
  }
}

function imagePart(data: Uint8Array<ArrayBuffer>, mediaType: string) {
  const source = { case: "inline" as const, value: { data, mediaType } };
  return create(ContentPartSchema, { part: { case: "image", value: { source } } });
}

function draftOf(content: ContentPart[], text: string): Draft {
  const images = content.flatMap(({ part }) => {
    const source = part.case === "image" ? part.value.source : undefined;
    return source?.case === "inline"
      ? [{ name: "image", mediaType: source.value.mediaType, data: new Uint8Array(source.value.data) }]
      : [];
  });
  return { text, images };
}

function decided({ id: toolCallId }: ToolCall, decision: Decision | undefined): ApprovalDecision {
  switch (decision?.kind) {
    case "approve":
      return create(ApprovalDecisionSchema, { toolCallId, decision: { case: "approve", value: create(ApproveSchema) } });
    case "return": {
      const status = decision.ok ? ToolReturnStatus.SUCCESS : ToolReturnStatus.ERROR;
      const content = [{ part: { case: "text" as const, value: { text: decision.text } } }];
      const value = create(ToolReturnSchema, { toolCallId, name: decision.call.name, status, content });
      return create(ApprovalDecisionSchema, { toolCallId, decision: { case: "clientReturn", value } });
    }
    default: {
      const reason = decision?.reason || undefined;
      return create(ApprovalDecisionSchema, { toolCallId, decision: { case: "deny", value: { reason } } });
    }
  }
}

/** Returns a text with a piece at an offset, and the length of both. These count Unicode characters. */
function joined(text = "", characters = 0, offset: bigint, piece: string): { text: string; characters: number } {
  const at = Math.min(Number(offset), characters);
  const kept = at === characters ? text : Array.from(text).slice(0, at).join("");
  return { text: kept + piece, characters: at + lengthOf(piece) };
}

function lengthOf(text: string): number {
  let length = 0;
  for (const _ of text) {
    length += 1;
  }
  return length;
}
