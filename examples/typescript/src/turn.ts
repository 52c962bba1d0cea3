// The stream of a run: prints its events, and continues after a broken connection.

import { isAbortError } from "abort-controller-x";
import { ClientError, Status } from "nice-grpc";
import type { CallOptions, Client } from "nice-grpc";
import type { DeadlineOptions } from "nice-grpc-client-middleware-deadline";
import { StopReason } from "../gen/mnemesh/agents/v1/agents.js";
import type { MessageEvent, RunEvent } from "../gen/mnemesh/agents/v1/runs.js";
import type { RunServiceDefinition } from "../gen/mnemesh/agents/v1/runs_service.js";
import type { ContentPart, ToolCall } from "../gen/mnemesh/types/v1/message.js";
import { TURN } from "./connection.js";

export type Runs = Client<RunServiceDefinition, DeadlineOptions>;
type Stream = AsyncIterable<{ event?: RunEvent | undefined }>;
type Open = (options: CallOptions & DeadlineOptions) => Stream;

/** Follows a run until it stops. */
export class Turn {
  stopReason = StopReason.STOP_REASON_UNSPECIFIED;
  approvalRequestId = "";
  pendingCalls: ToolCall[] = [];
  private runId = "";
  private lastSequence = 0;
  private ended = false;

  /** `dropAfter` cancels the stream once after the event with this number, to show how a client continues. */
  constructor(
    private readonly runs: Runs,
    private dropAfter = Infinity,
  ) {}

  /** Prints all events. `open` sends the request; it is sent again if the run's id did not arrive. */
  async follow(open: Open): Promise<this> {
    while (!this.ended) {
      const abort = new AbortController();
      const options = { ...TURN, signal: abort.signal };
      try {
        for await (const response of this.runId ? this.resume(options) : open(options)) {
          this.receive(response.event!);
          if (this.lastSequence >= this.dropAfter) {
            this.dropAfter = Infinity;
            abort.abort();
          }
        }
      } catch (error) {
        const isBroken = error instanceof ClientError && error.code === Status.UNAVAILABLE;
        if (!isBroken && !isAbortError(error)) {
          throw error;
        }
      }
    }
    return this;
  }

  private resume(options: CallOptions & DeadlineOptions): Stream {
    console.log(`  the stream broke; it continues after event ${this.lastSequence}`);
    return this.runs.streamRun({ runId: this.runId, startingAfter: this.lastSequence }, options);
  }

  private receive({ runId, sequence, event }: RunEvent): void {
    this.runId = runId;
    if (sequence !== undefined) {
      if (sequence <= this.lastSequence) {
        return; // It arrived before the stream broke.
      }
      this.lastSequence = sequence;
    }
    switch (event?.$case) {
      case "delta":
        if (event.value.delta?.$case === "assistantText") {
          console.log(`  delta ${JSON.stringify(event.value.delta.value)}`);
        }
        break;
      case "message":
        this.printMessage(sequence!, event.value);
        break;
      case "error":
        console.log(`${sequence} error ${event.value.error?.reason}: ${event.value.error?.message}`);
        break;
      case "stop":
        this.stopReason = event.value.reason;
        console.log(`${sequence} stop ${StopReason[this.stopReason].replace("STOP_REASON_", "")}`);
        break;
      case "usage":
        console.log(`${sequence} usage ${event.value.usage?.totalTokens} tokens`);
        this.ended = true; // The last event of every run.
    }
  }

  private printMessage(sequence: number, { messageId, message }: MessageEvent): void {
    switch (message?.$case) {
      case "user":
        console.log(`${sequence} user: ${text(message.value.content)}`);
        break;
      case "reasoning":
        console.log(`${sequence} reasoning: ${message.value.text}`);
        break;
      case "assistant":
        console.log(`${sequence} assistant: ${text(message.value.content)}`);
        break;
      case "toolCall":
        for (const call of message.value.toolCalls) {
          console.log(`${sequence} tool call: ${call.name} ${call.arguments}`);
        }
        break;
      case "toolReturn":
        for (const result of message.value.toolReturns) {
          console.log(`${sequence} tool return: ${result.name}: ${text(result.content)}`);
        }
        break;
      case "approvalRequest":
        this.approvalRequestId = messageId;
        this.pendingCalls = message.value.toolCalls;
        for (const call of this.pendingCalls) {
          console.log(`${sequence} waits for: ${call.name} ${call.arguments}`);
        }
        break;
      case "approvalResponse":
        console.log(`${sequence} approval response`);
        break;
      default: // Later versions may add kinds.
        console.log(`${sequence} ${message?.$case}`);
    }
  }
}

function text(content: ContentPart[]): string {
  return content.map(({ part }) => (part?.$case === "text" ? part.value.text : "")).join(" ");
}
