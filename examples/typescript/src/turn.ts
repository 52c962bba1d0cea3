// The stream of a run: prints its events, and continues after a broken connection.

import { setTimeout as sleep } from "node:timers/promises";
import { ClientError, Status } from "nice-grpc";
import type { CallOptions, Client } from "nice-grpc";
import type { DeadlineOptions } from "nice-grpc-client-middleware-deadline";
import { StopReason } from "../gen/mnemesh/agents/v1/agents.js";
import type { MessageEvent, RunEvent } from "../gen/mnemesh/agents/v1/runs.js";
import type { RunServiceDefinition } from "../gen/mnemesh/agents/v1/runs_service.js";
import type { ContentPart, ToolCall } from "../gen/mnemesh/types/v1/message.js";
import { TURN } from "./connection.js";

export type Runs = Client<RunServiceDefinition, DeadlineOptions>;

/** The server sends an event after this time if it has no other, in seconds. */
export const KEEPALIVE = 10;
/** Without an event for this time a stream is dead, even if gRPC does not say so, in milliseconds. */
const SILENCE = 25_000;
/** Without an event for this time a broken stream is not opened again, in milliseconds. */
const PATIENCE = 60_000;

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
    let failures = 0;
    let heard = performance.now();
    for (;;) {
      const abort = new AbortController();
      const options = { ...TURN, signal: abort.signal };
      const watchdog = setTimeout(() => abort.abort(), SILENCE);
      try {
        for await (const response of this.runId ? this.resume(options) : open(options)) {
          failures = 0;
          heard = performance.now();
          watchdog.refresh();
          this.receive(response.event!);
          if (this.lastSequence >= this.dropAfter) {
            this.dropAfter = Infinity;
            abort.abort();
          }
        }
      } catch (error) {
        if (!(abort.signal.aborted || isBroken(error)) || performance.now() - heard > PATIENCE) {
          throw error;
        }
      } finally {
        clearTimeout(watchdog);
      }
      if (this.ended) {
        return this;
      }
      if (!failures) {
        const action = this.runId ? `it continues after event ${this.lastSequence}` : "the request is sent again";
        console.log(`  the stream broke; ${action}`);
      }
      await sleep(Math.min(2000, 100 * 2 ** failures));
      failures += 1;
    }
  }

  private resume(options: CallOptions & DeadlineOptions): Stream {
    return this.runs.streamRun(
      { runId: this.runId, startingAfter: this.lastSequence, keepaliveSeconds: KEEPALIVE },
      options,
    );
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

function isBroken(error: unknown): boolean {
  return error instanceof ClientError && (error.code === Status.UNAVAILABLE || error.code === Status.CANCELLED);
}

function text(content: ContentPart[]): string {
  return content.map(({ part }) => (part?.$case === "text" ? part.value.text : "")).join(" ");
}
