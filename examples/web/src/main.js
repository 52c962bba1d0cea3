// A web page's client: the same calls as over gRPC, with fetch. README.md lists the environment variables.

import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";
import { AgentService } from "../gen/mnemesh/agents/v1/agents_service_pb.js";
import { AgentType } from "../gen/mnemesh/agents/v1/agents_pb.js";
import { RunService } from "../gen/mnemesh/agents/v1/runs_service_pb.js";
import { BlockService } from "../gen/mnemesh/blocks/v1/blocks_service_pb.js";

const baseUrl = process.env.MNEMESH_GATEWAY ?? "http://127.0.0.1:8283";
const model = process.env.MNEMESH_EXAMPLE_MODEL ?? "mnemesh/rehearsal";

// The token stays in memory: a page must not store it.
const authorize = (next) => (request) => {
  if (process.env.MNEMESH_TOKEN) {
    request.header.set("authorization", `Bearer ${process.env.MNEMESH_TOKEN}`);
  }
  return next(request);
};

/** Creates an agent, runs a turn, reads its memory, and deletes it. */
async function tell(name, transport) {
  const agents = createClient(AgentService, transport);
  const blocks = createClient(BlockService, transport);
  const { agent } = await agents.createAgent({
    agent: { name: `${name}-${crypto.randomUUID().slice(0, 8)}`, type: AgentType.LETTA_V1, model },
    blocks: [{ label: "human" }],
  });
  const text = { content: [{ part: { case: "text", value: { text: "My name is Ada." } } }] };
  const turn = createClient(RunService, transport).sendMessage({
    agentId: agent.id,
    messages: [text],
    config: { streamTokens: true },
  });
  const kinds = [];
  for await (const { event } of turn) {
    if (kinds.at(-1) !== event.event.case) {
      kinds.push(event.event.case);
    }
  }
  console.log(`${name}: ${kinds.join(" ")}`);
  const { coreMemory } = await blocks.getCoreMemory({ agentId: agent.id });
  console.log(`${name}: ${coreMemory.blocks.map((block) => `${block.label}: ${block.value.trim()}`).join(", ")}`);
  await agents.deleteAgent({ agentId: agent.id });
  try {
    await agents.getAgent({ agentId: agent.id });
  } catch (error) {
    const found = ConnectError.from(error);
    console.log(`${name}: error ${Code[found.code]}, ${found.rawMessage}`);
  }
}

const options = { baseUrl, interceptors: [authorize] };
await tell("connect", createConnectTransport(options));
await tell("connect binary", createConnectTransport({ ...options, useBinaryFormat: true }));
await tell("grpc-web", createGrpcWebTransport(options));
