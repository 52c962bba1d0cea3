// Talks to a mesh with nothing but its protos: makes an agent, streams a turn, looks into each tier.
// Usage: node client.mjs <folder of the protos> <address of the orchestrator>. Prints one line of JSON.

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

// the packages stand in the folder that this is run in
const require = createRequire(`${process.cwd()}/`);
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [protos, address] = process.argv.slice(2);
const definition = loader.loadSync(
  [
    "mnemesh/agents/v1/agents_service.proto",
    "mnemesh/agents/v1/runs_service.proto",
    "mnemesh/blocks/v1/blocks_service.proto",
    "mnemesh/recall/v1/messages_service.proto",
  ],
  { includeDirs: [protos], keepCase: true, longs: Number, enums: String, oneofs: true, defaults: true },
);
const { mnemesh } = grpc.loadPackageDefinition(definition);
const plain = grpc.credentials.createInsecure();
const options = {
  "grpc.service_config": readFileSync(`${protos}/service_config.json`, "utf8"),
  "grpc.max_receive_message_length": 64 * 1024 * 1024,
};
const agents = new mnemesh.agents.v1.AgentService(address, plain, options);
const runs = new mnemesh.agents.v1.RunService(address, plain, options);
const core = new mnemesh.blocks.v1.BlockService(address, plain, options);
const messages = new mnemesh.recall.v1.MessageService(address, plain, options);
const clients = [agents, runs, core, messages];

const deadline = () => ({ deadline: Date.now() + 30_000 });

function ask(client, method, request) {
  return new Promise((resolve, reject) => {
    client[method](request, new grpc.Metadata(), deadline(), (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

function send(agentId, text) {
  const request = {
    request_id: randomUUID(),
    agent_id: agentId,
    messages: [{ role: "ROLE_USER", content: [{ text: { text } }] }],
    config: { stream_tokens: true },
  };
  return new Promise((resolve, reject) => {
    const events = [];
    const stream = runs.SendMessage(request, new grpc.Metadata(), deadline());
    stream.on("data", ({ event }) => events.push(event));
    stream.on("error", reject);
    stream.on("end", () => resolve(events));
  });
}

function heard(events) {
  const whole = events.filter((event) => event.event === "message" && event.message.message === "assistant");
  const deltas = events.filter((event) => event.event === "delta" && event.delta.delta === "assistant_text");
  return {
    said: whole.flatMap((event) => event.message.assistant.content.map((part) => part.text.text)).join(""),
    streamed: deltas.map((event) => event.delta.assistant_text).join(""),
    kinds: events.map((event) => event.event),
    calls: events
      .filter((event) => event.event === "message" && event.message.message === "tool_call")
      .flatMap((event) => event.message.tool_call.tool_calls.map((call) => call.name)),
    sequences: events.filter((event) => event._sequence === "sequence").map((event) => event.sequence),
    stop: events.find((event) => event.event === "stop")?.stop,
  };
}

async function refusal(agentId) {
  try {
    await ask(agents, "GetAgent", { agent_id: agentId });
    return null;
  } catch (error) {
    // google.rpc.Status with an ErrorInfo, as every gRPC library hands it out
    const details = error.metadata.get("grpc-status-details-bin");
    return { code: error.code, reason: details.length > 0 && details[0].toString("latin1").includes("NOT_FOUND") };
  }
}

const { agent } = await ask(agents, "CreateAgent", {
  request_id: randomUUID(),
  agent: { name: "from-node", type: "AGENT_TYPE_LETTA_V1", model: "mnemesh/rehearsal" },
  blocks: [{ label: "human", value: "" }],
});
const first = heard(await send(agent.id, "My name is Ada. Remember that the key is under the mat."));
const second = heard(await send(agent.id, "What is my name? What do you know about the key?"));
const { core_memory: memory } = await ask(core, "GetCoreMemory", { agent_id: agent.id });
const { context } = await ask(messages, "GetContext", { conversation_id: agent.default_conversation_id });
const missing = await refusal("agent-00000000-0000-4000-8000-00000000beef");
console.log(
  JSON.stringify({
    agent: { id: agent.id, name: agent.name, state: agent.state },
    turns: [first, second],
    human: memory.blocks[0].value,
    roles: context.messages.map((message) => message.role),
    missing,
  }),
);
for (const client of clients) {
  client.close();
}
