// How the mesh is called: its address, the token, and errors in words for people. The clients of services are in clients/:
// a view loads those that it needs.

import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { signal } from "@preact/signals";
import type { RunError } from "../gen/mnemesh/agents/v1/runs_pb";

/** The token of the caller. It is kept in memory alone: a reload asks for it again. */
export const token = signal("");
/** Whether the mesh refused a call because it has no valid token. */
export const needsToken = signal(false);
const waiting = new Set<() => void>();

/** Uses another token: the calls that were refused are sent again. */
export function logIn(entered: string): void {
  token.value = entered;
  needsToken.value = false;
  for (const goOn of waiting) {
    goOn();
  }
  waiting.clear();
}

/** Asks for a token, and waits until a person has entered one. Throws when the call is aborted. */
function login(refused: string, signal: AbortSignal | undefined): Promise<void> {
  if (token.peek() !== refused) {
    return Promise.resolve();
  }
  needsToken.value = true;
  return new Promise((resolve, reject) => {
    const cancel = () => (waiting.delete(resolve), reject(new ConnectError("The call was cancelled.", Code.Canceled)));
    waiting.add(resolve);
    signal?.addEventListener("abort", cancel, { once: true });
  });
}

export function isUnauthenticated(error: unknown): boolean {
  return ConnectError.from(error).code === Code.Unauthenticated;
}

/** Makes a call with the token. If the mesh refuses it, the call waits for another one: a half-written form is not lost. */
export async function authorized<T>(call: (token: string) => Promise<T>, signal?: AbortSignal): Promise<T> {
  for (;;) {
    const sent = token.peek();
    try {
      return await call(sent);
    } catch (error) {
      if (!isUnauthenticated(error)) {
        throw error;
      }
      await login(sent, signal);
    }
  }
}

/** The request of a stream can be read once: its caller opens another stream after the login. */
const authorize: Interceptor = (next) => async (request) => {
  const call = async (sent: string) => {
    if (sent) {
      request.header.set("authorization", `Bearer ${sent}`);
    }
    return await next(request);
  };
  if (!request.stream) {
    return await authorized(call, request.signal);
  }
  const sent = token.peek();
  try {
    return await call(sent);
  } catch (error) {
    if (isUnauthenticated(error)) {
      await login(sent, request.signal);
    }
    throw error;
  }
};

/** Where the mesh is: the page is served at <prefix>/console/, and the methods at <prefix>/mnemesh.…. */
export const baseUrl = new URL("..", document.baseURI).href.replace(/\/$/, "");
export const transport = createConnectTransport({ baseUrl, useBinaryFormat: true, interceptors: [authorize] });

/** Returns a new idempotency key. crypto.randomUUID needs HTTPS or localhost, this does not. */
export function newRequestId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What went wrong, and what to do about it. */
export interface Problem {
  reason: string;
  message: string;
  next: string;
}

const NEXT_STEPS: Record<string, string> = {
  AGENT_REVISION_MISMATCH: "Another client changed the agent. Load it again.",
  BLOCK_LABEL_TAKEN: "Choose another label.",
  BLOCK_LIMIT_EXCEEDED: "Shorten the text, or raise the limit of the block.",
  BLOCK_REVISION_MISMATCH: "The block has changed since you opened it. Load it again, then repeat your change.",
  CONVERSATION_BUSY: "Wait until the other run has ended, or cancel it.",
  EMBEDDER_UNAVAILABLE: "Search by words still works. Look at the logs of recall or archival.",
  FACT_CLOSED: "Someone changed the fact meanwhile. Load the facts again, then repeat your change.",
  MODEL_UNKNOWN: "Choose another model, or configure its provider: see docs/providers.md.",
  NOT_FOUND: "It may have been deleted meanwhile. Go back to the list.",
  PENDING_APPROVAL: "Answer the approval that waits first.",
  PERMISSION_DENIED: "Use a token with the needed role.",
  PROVIDER_AUTH: "Check the key of the model's provider.",
  PROVIDER_PAYMENT_REQUIRED: "The account of the provider has no credit. Add some, or choose another model.",
  PROVIDER_RATE_LIMITED: "The provider asks to slow down. Send the message again later.",
  PROVIDER_TIMEOUT: "The provider does not answer. Retry, or choose another model.",
  PROVIDER_UNAVAILABLE: "The provider does not answer. Check its address, or retry later.",
  SERVER_BUSY: "The mesh has too many open requests. Try again in a moment.",
  UNAUTHENTICATED: "Enter a token: mnemesh tokens create makes one.",
  UNAVAILABLE: "Check that the mesh runs: mnemesh status shows each service.",
};

/** Returns the problem that an error of a call tells. */
export function problemOf(error: unknown): Problem {
  const found = ConnectError.from(error);
  const reason = reasonOf(found);
  if (!reason && isTransport(found)) {
    return { reason: "UNAVAILABLE", message: "The gateway does not answer.", next: NEXT_STEPS.UNAVAILABLE! };
  }
  const name = reason || Code[found.code].replace(/(?!^)([A-Z])/g, "_$1").toUpperCase();
  return { reason: name, message: found.rawMessage, next: NEXT_STEPS[name] ?? "" };
}

/** Returns the problem that a run or a step ended with. */
export function problemOfRun(error: RunError | undefined): Problem {
  const reason = error?.reason ?? "";
  return { reason, message: error?.message ?? "", next: NEXT_STEPS[reason] ?? "" };
}

/** Returns whether the same call may succeed later: the connection broke, or a service did not answer. */
export function isTransient(error: unknown): boolean {
  const found = ConnectError.from(error);
  return found.code === Code.Unavailable || (!reasonOf(found) && isTransport(found));
}

/** Returns the reason that the mesh gives an error; empty if the error comes from the connection. */
function reasonOf(error: ConnectError): string {
  for (const detail of error.details) {
    const shown = "debug" in detail ? detail.debug : undefined;
    if (shown && typeof shown === "object" && "reason" in shown && typeof shown.reason === "string") {
      return shown.reason;
    }
  }
  return "";
}

/** A gateway that stops cancels its open calls. */
function isTransport(error: ConnectError): boolean {
  return [Code.Unknown, Code.Internal, Code.Unavailable, Code.Aborted, Code.Canceled].includes(error.code);
}
