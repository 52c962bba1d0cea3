// The memory of an agent: its three tiers, pages of messages, errors, deletion.

import { randomUUID } from "node:crypto";
import type { Channel } from "nice-grpc";
import { AgentServiceDefinition } from "../gen/mnemesh/agents/v1/agents_service.js";
import { PassageServiceDefinition } from "../gen/mnemesh/archival/v1/passages_service.js";
import { BlockServiceDefinition } from "../gen/mnemesh/blocks/v1/blocks_service.js";
import { MessageServiceDefinition } from "../gen/mnemesh/recall/v1/messages_service.js";
import { ToolServiceDefinition } from "../gen/mnemesh/tools/v1/tools_service.js";
import { clients, READ, WRITE } from "./connection.js";
import { describe } from "./errors.js";

const QUESTION = "Where is the key?";

/** Reads the three tiers of the agent's memory. */
export async function search(channel: Channel, agentId: string): Promise<void> {
  const core = await clients().create(BlockServiceDefinition, channel).getCoreMemory({ agentId }, READ);
  for (const block of core.coreMemory?.blocks ?? []) {
    console.log(`core memory ${block.label}: ${block.value}`);
  }
  const messages = await clients()
    .create(MessageServiceDefinition, channel)
    .searchMessages({ query: QUESTION, agentId, limit: 1 }, READ);
  for (const hit of messages.hits) {
    console.log(`recall memory: ${hit.text}`);
  }
  const passages = await clients()
    .create(PassageServiceDefinition, channel)
    .searchPassages({ query: QUESTION, limit: 1, filter: { agentId } }, READ);
  for (const hit of passages.hits) {
    console.log(`archival memory: ${hit.passage?.text}`);
  }
}

/** Reads all pages of the agent's messages. */
export async function listMessages(channel: Channel, agentId: string): Promise<void> {
  const client = clients().create(MessageServiceDefinition, channel);
  let pages = 0;
  let count = 0;
  let pageToken = "";
  do {
    const response = await client.listMessages({ pageSize: 4, pageToken, agentIds: [agentId] }, READ);
    pages += 1;
    count += response.messages.length;
    pageToken = response.nextPageToken;
  } while (pageToken);
  console.log(`messages ${count} in ${pages} pages`);
}

/** Reads the details of two errors. */
export async function fail(channel: Channel): Promise<void> {
  const agents = clients().create(AgentServiceDefinition, channel);
  const messages = clients().create(MessageServiceDefinition, channel);
  for (const call of [
    () => agents.getAgent({ agentId: "agent-00000000-0000-4000-8000-000000000000" }, READ),
    () => messages.searchMessages({ query: "key", limit: 1000 }, READ),
  ]) {
    try {
      await call();
    } catch (error) {
      console.log(`error ${describe(error)}`);
    }
  }
}

/** Deletes the agent with its memory. */
export async function deleteAgent(channel: Channel, agentId: string): Promise<void> {
  await clients()
    .create(AgentServiceDefinition, channel)
    .deleteAgent(
      { requestId: randomUUID(), agentId, deleteUnsharedBlocks: true, deleteUnsharedArchives: true },
      WRITE,
    );
  console.log(`deleted ${agentId}`);
}

export async function deleteTool(channel: Channel, toolId: string): Promise<void> {
  await clients().create(ToolServiceDefinition, channel).deleteTool({ requestId: randomUUID(), toolId }, WRITE);
  console.log(`deleted ${toolId}`);
}
