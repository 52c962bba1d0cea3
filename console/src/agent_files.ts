// Files of agents: ours, with a record per line as `mnemesh export --file` writes them, and agent files of Letta (.af).

import { create, fromJson, type JsonValue, type MessageInitShape, toBinary, toJsonString } from "@bufbuild/protobuf";
import { type AgentRecord, AgentRecordSchema } from "../gen/mnemesh/agents/v1/agent_records_pb";
import {
  AgentService,
  type ImportAgentResponse,
  ImportAgentRequestSchema,
  type ImportOptionsSchema,
} from "../gen/mnemesh/agents/v1/agents_service_pb";
import { Code, ConnectError } from "@connectrpc/connect";
import { authorized, baseUrl, type Problem } from "./api";
import { agents } from "./clients/agents";
import { callWithStream, enveloped } from "./client_stream";

/** What the page moves at most. The command line has no such limit, because it keeps no file in memory. */
export const MOST_BYTES = 512 * 1024 * 1024;
/** How much of a Letta file the page reads to say what is in it. */
const MOST_READ_BYTES = 32 * 1024 * 1024;
const BATCH_BYTES = 500_000;

/** A file that cannot be moved here, with what to do. */
export class FileProblem extends Error {
  constructor(readonly problem: Problem) {
    super(problem.message);
  }
}

function fileProblem(message: string, next: string): FileProblem {
  return new FileProblem({ reason: "", message, next });
}

interface Progress {
  records: number;
  bytes: number;
}

/** Returns an agent as records, one JSON object per line. */
export async function exportRecords(
  agentId: string,
  includeVectors: boolean,
  signal: AbortSignal,
  onProgress: (progress: Progress) => void,
): Promise<Blob> {
  const parts: Blob[] = [];
  const progress = { records: 0, bytes: 0 };
  for await (const { records } of agents.exportAgent({ agentId, includeVectors }, { signal })) {
    // A Blob per response: the browser may keep it outside of its memory.
    const part = new Blob(records.map((record) => `${toJsonString(AgentRecordSchema, record, { useProtoFieldName: true })}\n`));
    parts.push(part);
    progress.records += records.length;
    progress.bytes += part.size;
    if (progress.bytes > MOST_BYTES) {
      throw fileProblem("The agent is too large for the page.", `Use the command line: mnemesh export ${agentId} --file agent.mnemesh`);
    }
    onProgress({ ...progress });
  }
  return new Blob(parts, { type: "application/jsonl" });
}

/** Returns an agent as an agent file of Letta. */
export async function exportLetta(agentId: string, signal: AbortSignal): Promise<Blob> {
  return await (await callLetta(`agents/${encodeURIComponent(agentId)}/export`, { signal })).blob();
}

/** Offers a file to the person, as a download of the browser. */
export function download(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name.replace(/[^\p{L}\p{N}._-]+/gu, "-");
  link.click();
  // The browser has read the address by then.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** What a file has, before it is sent. */
export interface AgentFile {
  format: "mnemesh" | "letta";
  file: File;
  /** Names of the agents. Empty if the file is too large to look into. */
  names: string[];
  /** The number of things by their kind. */
  counts: Map<string, number>;
  /** The records as a stream of requests; of our format only. */
  requests: Blob[];
}

/** Reads a file. Throws a FileProblem that names the line that is no record. */
export async function readAgentFile(file: File, signal: AbortSignal): Promise<AgentFile> {
  if (file.size > MOST_BYTES) {
    throw fileProblem("The file is too large for the page.", "Use the command line: mnemesh import FILE");
  }
  const head = (await file.slice(0, 4096).text()).trimStart();
  const isRecords = /^\{\s*"header"/.test(head);
  return isRecords ? await readRecords(file, signal) : await readLetta(file);
}

async function readRecords(file: File, signal: AbortSignal): Promise<AgentFile> {
  const found: AgentFile = { format: "mnemesh", file, names: [], counts: new Map(), requests: [] };
  let batch: AgentRecord[] = [];
  let size = 0;
  const flush = () => {
    const request = create(ImportAgentRequestSchema, { records: batch });
    found.requests.push(new Blob([enveloped(toBinary(ImportAgentRequestSchema, request))]));
    batch = [];
    size = 0;
  };
  let number = 0;
  for await (const line of linesOf(file)) {
    signal.throwIfAborted();
    number += 1;
    if (!line.trim()) {
      continue;
    }
    const record = recordOf(line, number);
    const kind = record.record.case ?? "unknown";
    if (record.record.case === "agent") {
      found.names.push(record.record.value.name);
    } else if (kind !== "header" && kind !== "end") {
      found.counts.set(kind, (found.counts.get(kind) ?? 0) + 1);
    }
    batch.push(record);
    size += line.length;
    if (size > BATCH_BYTES) {
      flush();
    }
  }
  flush();
  return found;
}

function recordOf(line: string, number: number): AgentRecord {
  try {
    return fromJson(AgentRecordSchema, JSON.parse(line) as JsonValue, { ignoreUnknownFields: true });
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw fileProblem(`Line ${number} is not a record: ${reason.slice(0, 300)}`, "Export the agent again.");
  }
}

async function* linesOf(file: File): AsyncGenerator<string> {
  const reader = file.stream().pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) {
      break;
    }
    const pieces = value.split("\n");
    pieces[0] = rest + pieces[0]!;
    rest = pieces.pop()!;
    yield* pieces;
  }
  if (rest) {
    yield rest;
  }
}

interface LettaFile {
  agents?: { name?: string; messages?: unknown[] }[];
  blocks?: unknown[];
  tools?: unknown[];
}

async function readLetta(file: File): Promise<AgentFile> {
  const found: AgentFile = { format: "letta", file, names: [], counts: new Map(), requests: [] };
  if (file.size > MOST_READ_BYTES) {
    return found;
  }
  let content: LettaFile;
  try {
    content = JSON.parse(await file.text()) as LettaFile;
  } catch {
    throw fileProblem(`${file.name} is not a file of an agent.`, "Choose a file of mnemesh export --file, or an agent file of Letta (.af).");
  }
  const listed = Array.isArray(content.agents) ? content.agents : [];
  found.names = listed.map(({ name }) => name ?? "unnamed");
  const messages = listed.reduce((sum, agent) => sum + (agent.messages?.length ?? 0), 0);
  for (const [kind, number] of [["message", messages], ["block", content.blocks?.length], ["tool", content.tools?.length]] as const) {
    if (number) {
      found.counts.set(kind, number);
    }
  }
  return found;
}

type Options = MessageInitShape<typeof ImportOptionsSchema>;

interface SendOptions {
  options: Options;
  signal: AbortSignal;
  onProgress: (share: number) => void;
}

/** Creates an agent from the records of a file. */
export function importRecords({ requests }: AgentFile, { options, ...rest }: SendOptions): Promise<ImportAgentResponse> {
  const first = enveloped(toBinary(ImportAgentRequestSchema, create(ImportAgentRequestSchema, { options })));
  return callWithStream(AgentService.method.importAgent, new Blob([first, ...requests]), rest);
}

/** What an import of a Letta file created, and a sentence about each part that it did not take. */
export interface LettaImport {
  agent_ids: string[];
  left_out: string[];
}

/** Creates the agents of an agent file of Letta. */
export async function importLetta({ file }: AgentFile, { name, stripMessages }: Options, signal: AbortSignal): Promise<LettaImport> {
  const form = new FormData();
  form.append("file", file, file.name);
  if (name) {
    form.append("name", name);
  }
  if (stripMessages) {
    form.append("strip_messages", "true");
  }
  return (await (await callLetta("agents/import", { method: "POST", body: form, signal })).json()) as LettaImport;
}

/** Calls Letta's REST API of the gateway, which knows the format of its files. */
function callLetta(path: string, init: RequestInit): Promise<Response> {
  return authorized(async (token) => {
    const headers: Record<string, string> = token ? { authorization: `Bearer ${token}` } : {};
    const response = await fetch(`${baseUrl}/v1/${path}`, { ...init, headers });
    if (response.ok) {
      return response;
    }
    if (response.status === 401) {
      throw new ConnectError("The mesh does not accept the token.", Code.Unauthenticated);
    }
    const body = (await response.json().catch(() => ({}))) as { detail?: string | { msg?: string }[] };
    const detail = Array.isArray(body.detail) ? body.detail.map(({ msg }) => msg ?? "").join(" ") : body.detail;
    throw fileProblem(detail || `The gateway refuses the file with status ${response.status}.`, "");
  }, init.signal ?? undefined);
}
