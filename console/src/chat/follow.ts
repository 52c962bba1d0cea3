// The events of a run, each durable one once, across broken connections.

import type { MessageInitShape } from "@bufbuild/protobuf";
import type { RunEvent } from "../../gen/mnemesh/agents/v1/runs_pb";
import type { StartRunRequestSchema } from "../../gen/mnemesh/agents/v1/runs_service_pb";
import { isTransient, isUnauthenticated } from "../api";
import { runs } from "../clients/agents";

const PATIENCE_MS = 120_000;
const FIRST_DELAY_MS = 200;
const LONGEST_DELAY_MS = 5_000;

interface StartOptions {
  signal: AbortSignal;
  /** Called when the mesh does not answer, with a function that tries again at once. */
  onWait: (tryNow: () => void) => void;
}

/**
 * Starts a run in the background, so that its tokens are stored, and returns its id. While the mesh does not answer, the
 * request is sent again. It has the same request_id then, so it is the same run.
 */
export async function start(
  request: MessageInitShape<typeof StartRunRequestSchema>,
  { signal, onWait }: StartOptions,
): Promise<string> {
  for (let failures = 1; ; failures += 1) {
    try {
      return (await runs.startRun(request, { signal })).run!.id;
    } catch (error) {
      if (signal.aborted || !isTransient(error)) {
        throw error;
      }
      await new Promise<void>((resolve) => {
        onWait(resolve);
        void delay(delayAfter(failures), signal).then(resolve);
      });
    }
  }
}

function delayAfter(failures: number): number {
  return Math.min(FIRST_DELAY_MS * 2 ** failures, LONGEST_DELAY_MS);
}

type Responses = AsyncIterable<{ event?: RunEvent }>;

interface Options {
  /** Opens the first stream; absent attaches to `runId`. A repeat has the same request_id, so it is the same run. */
  open?: (signal: AbortSignal) => Responses;
  runId?: string;
  signal: AbortSignal;
  /** Called when the connection breaks, and with false when events arrive again. */
  onLost: (isLost: boolean) => void;
}

/**
 * Yields the events of a run up to its end. If the stream breaks, the run continues on the server: the stream is opened
 * again after the last event that arrived.
 */
export async function* follow({ open, runId = "", signal, onLost }: Options): AsyncGenerator<RunEvent> {
  let sequence = 0n;
  let stopped = false;
  let failedAt = 0;
  let failures = 0;
  const attach = () => runs.streamRun({ runId, startingAfter: sequence, includeDeltas: true }, { signal });
  while (!stopped) {
    try {
      for await (const { event } of runId || !open ? attach() : open(signal)) {
        if (failures) {
          failures = 0;
          onLost(false);
        }
        if (!event) {
          continue;
        }
        runId = event.runId || runId;
        if (event.sequence !== undefined) {
          if (event.sequence <= sequence) {
            continue;
          }
          sequence = event.sequence;
        }
        stopped ||= event.event.case === "stop";
        yield event;
      }
      if (stopped || (await hasAll(runId, sequence, signal))) {
        return;
      }
    } catch (error) {
      if (!signal.aborted && isUnauthenticated(error)) {
        continue;
      }
      if (signal.aborted || !isTransient(error)) {
        throw error;
      }
      if (stopped) {
        return;
      }
      failedAt = failures ? failedAt : Date.now();
      if (Date.now() - failedAt > PATIENCE_MS) {
        throw error;
      }
    }
    failures += 1;
    onLost(true);
    await delay(delayAfter(failures), signal);
  }
}

/** Returns whether the run has ended and its last event arrived: the page attached after the stop. */
async function hasAll(runId: string, sequence: bigint, signal: AbortSignal): Promise<boolean> {
  if (!runId) {
    return false;
  }
  const { run } = await runs.getRun({ runId }, { signal });
  return run?.completionTime !== undefined && run.lastSequence <= sequence;
}

function delay(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
