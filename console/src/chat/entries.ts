// What a conversation shows: entries made of stored messages and of the events of a run.

import type { Timestamp } from "@bufbuild/protobuf/wkt";
import type { MessageEvent } from "../../gen/mnemesh/agents/v1/runs_pb";
import {
  type ApprovalDecision,
  type ContentPart,
  type ImagePart,
  type Message,
  Role,
  type ToolCall,
  type ToolReturn,
  ToolReturnStatus,
} from "../../gen/mnemesh/types/v1/message_pb";
import type { Problem } from "../api";
import { textOf } from "../format";

interface Base {
  key: string;
  /** The stored message; empty for what is not one. */
  messageId: string;
  runId: string;
  time?: Timestamp;
  /** Set while tokens arrive. */
  live?: boolean;
}

export interface Said extends Base {
  kind: "user" | "assistant" | "reasoning" | "summary" | "note";
  text: string;
  images: string[];
  name?: string;
  /** A message that the mesh has not taken yet. */
  sending?: "first" | "again";
  /** The length of the text in Unicode characters, while tokens arrive. */
  characters?: number;
}

export interface Called extends Base {
  kind: "call";
  callId: string;
  name: string;
  input: string;
  characters?: number;
  progress?: string;
  result?: Result;
  /** The stored message of the result. */
  resultId?: string;
}

export interface Result {
  ok: boolean;
  text: string;
  images: string[];
  stdout: string;
  stderr: string;
}

export interface Asked extends Base {
  kind: "approval";
  /** The agent that asks: this one, or one that the run waits for. */
  agentId: string;
  calls: ToolCall[];
  /** By the id of the call. Absent while the request waits. */
  decisions?: Record<string, string>;
}

export interface Failed extends Base {
  kind: "failure";
  problem: Problem;
}

export type Entry = Said | Called | Asked | Failed;

export type Entries = Map<string, Entry>;

const SEND_MESSAGE = "send_message";

/** Adds a stored message. Messages are added oldest first. */
export function addMessage(entries: Entries, message: Message): void {
  const { id: messageId, runId = "", createTime: time } = message;
  const base = { messageId, runId, time };
  const say = (kind: Said["kind"], index: number, content: Partial<Said>) => {
    const key = `${messageId}/${index}`;
    entries.set(key, { ...base, key, kind, text: "", images: [], name: message.name, ...content });
  };
  switch (message.role) {
    case Role.USER:
    case Role.SYSTEM:
      if (message.isEvent || message.role === Role.SYSTEM) {
        say("note", 0, { text: textOf(message.content) });
      } else {
        say("user", 0, { text: textOf(message.content), images: imagesOf(message.content) });
      }
      break;
    case Role.SUMMARY:
      say("summary", 0, { text: textOf(message.content) });
      break;
    case Role.ASSISTANT:
      message.content.forEach((part, index) => {
        const reasoning = reasoningOf(part);
        if (reasoning !== undefined) {
          say("reasoning", index, { text: reasoning });
        }
      });
      if (textOf(message.content)) {
        say("assistant", message.content.length, { text: textOf(message.content) });
      }
      message.toolCalls.forEach((call, index) => {
        const sent = call.name === SEND_MESSAGE ? sentText(call.arguments) : undefined;
        if (sent === undefined) {
          addCall(entries, base, call);
        } else {
          say("assistant", message.content.length + 1 + index, { text: sent });
        }
      });
      break;
    case Role.TOOL:
      message.toolReturns.forEach((each) => addReturn(entries, base, each));
      break;
    case Role.APPROVAL:
      if (message.approvalRequestId) {
        addDecisions(entries, message.approvalRequestId, message.approvalDecisions);
      } else {
        message.content.forEach((part, index) => {
          const text = reasoningOf(part) ?? (part.part.case === "text" ? part.part.value.text : "");
          if (text) {
            say(part.part.case === "text" ? "assistant" : "reasoning", index, { text });
          }
        });
        addRequest(entries, base, "", message.toolCalls);
      }
      break;
  }
}

/** Adds the message of an event. `agentId` is the agent that asks for an approval, if it is another one. */
export function addEvent(entries: Entries, runId: string, agentId: string, event: MessageEvent): void {
  const { messageId, otid, messageTime: time, message } = event;
  const base = { messageId, runId, time };
  const say = (kind: Said["kind"], text: string, images: string[] = []) =>
    entries.set(otid, { ...base, key: otid, kind, text, images, name: event.name });
  switch (message.case) {
    case "user":
      // A retry sends the message of the failed run again.
      for (const [key, entry] of entries) {
        if (entry.messageId === messageId) {
          entries.delete(key);
        }
      }
      say("user", textOf(message.value.content), imagesOf(message.value.content));
      break;
    case "system":
      say("note", message.value.text);
      break;
    case "assistant":
      say("assistant", textOf(message.value.content));
      break;
    case "reasoning":
      say("reasoning", message.value.text);
      break;
    case "hiddenReasoning":
      say("reasoning", HIDDEN);
      break;
    case "summary":
      say("summary", message.value.text);
      break;
    case "toolCall":
      message.value.toolCalls.forEach((call) => addCall(entries, base, call));
      break;
    case "toolReturn":
      message.value.toolReturns.forEach((each) => addReturn(entries, base, each));
      break;
    case "approvalRequest":
      addRequest(entries, base, agentId, message.value.toolCalls);
      break;
    case "approvalResponse":
      addDecisions(entries, message.value.approvalRequestId, message.value.decisions);
      break;
  }
}

const HIDDEN = "The provider keeps this reasoning to itself.";

function addCall(entries: Entries, base: Omit<Base, "key">, call: ToolCall): void {
  const key = `call/${call.id}`;
  const known = entries.get(key);
  const { result, resultId } = known?.kind === "call" ? known : {};
  const called = { callId: call.id, name: call.name, input: call.arguments, result, resultId };
  entries.set(key, { ...base, key, kind: "call", ...called });
}

function addReturn(entries: Entries, base: Omit<Base, "key">, answer: ToolReturn): void {
  const key = `call/${answer.toolCallId}`;
  const known = entries.get(key);
  const result = resultOf(answer);
  if (known?.kind === "call") {
    entries.set(key, { ...known, result, resultId: base.messageId, progress: undefined });
  } else if (answer.name !== SEND_MESSAGE) {
    const input = approvedInput(entries, answer.toolCallId);
    const call = { callId: answer.toolCallId, name: answer.name, input, result, resultId: base.messageId };
    entries.set(key, { ...base, key, kind: "call", ...call });
  }
}

/** Returns the arguments of a call that waited for an approval: its request has them. */
function approvedInput(entries: Entries, callId: string): string {
  for (const entry of entries.values()) {
    const call = entry.kind === "approval" && entry.calls.find(({ id }) => id === callId);
    if (call) {
      return call.arguments;
    }
  }
  return "";
}

function addRequest(entries: Entries, base: Omit<Base, "key">, agentId: string, calls: ToolCall[]): void {
  const key = `approval/${base.messageId}`;
  const known = entries.get(key);
  const decisions = known?.kind === "approval" ? known.decisions : undefined;
  entries.set(key, { ...base, key, kind: "approval", agentId, calls, decisions });
}

function addDecisions(entries: Entries, requestId: string, decisions: ApprovalDecision[]): void {
  const key = `approval/${requestId}`;
  const request = entries.get(key);
  if (request?.kind === "approval") {
    entries.set(key, { ...request, decisions: Object.fromEntries(decisions.map((each) => [each.toolCallId, verdict(each)])) });
  }
}

function verdict({ decision }: ApprovalDecision): string {
  switch (decision.case) {
    case "approve":
      return "approved";
    case "deny":
      return decision.value.reason ? `denied: ${decision.value.reason}` : "denied";
    default:
      return "answered by a client";
  }
}

function resultOf(answer: ToolReturn): Result {
  return {
    ok: answer.status !== ToolReturnStatus.ERROR,
    text: textOf(answer.content),
    images: imagesOf(answer.content),
    stdout: answer.stdout.join("\n"),
    stderr: answer.stderr.join("\n"),
  };
}

function reasoningOf({ part }: ContentPart): string | undefined {
  switch (part.case) {
    case "reasoning":
      return part.value.text;
    case "summarizedReasoning":
      return part.value.summaries.join("\n\n");
    case "redactedReasoning":
    case "omittedReasoning":
      return HIDDEN;
    default:
      return undefined;
  }
}

/** Returns what the tool send_message says to the user; undefined if its arguments are broken. */
function sentText(input: string): string | undefined {
  try {
    const { message } = JSON.parse(input) as { message?: unknown };
    return typeof message === "string" ? message : undefined;
  } catch {
    return undefined;
  }
}

const SHOWN_IMAGES = /^image\/(png|jpeg|gif|webp)$/;

/** Returns inline images as data addresses. The page loads nothing from other hosts. */
export function imagesOf(content: ContentPart[]): string[] {
  return content.flatMap(({ part }) => (part.case === "image" ? [imageOf(part.value)].flat() : []));
}

function imageOf({ source }: ImagePart): string | string[] {
  if (source.case !== "inline" || !SHOWN_IMAGES.test(source.value.mediaType)) {
    return [];
  }
  let binary = "";
  for (const byte of source.value.data) {
    binary += String.fromCharCode(byte);
  }
  return `data:${source.value.mediaType};base64,${btoa(binary)}`;
}
