// An agent from its creation to its deletion, over gRPC. See README.md.

import { randomUUID } from "node:crypto";
import type { Channel } from "nice-grpc";
import { StopReason } from "../gen/mnemesh/agents/v1/agents.js";
import type { Agent } from "../gen/mnemesh/agents/v1/agents.js";
import { AgentServiceDefinition } from "../gen/mnemesh/agents/v1/agents_service.js";
import { RunServiceDefinition } from "../gen/mnemesh/agents/v1/runs_service.js";
import { SourceType, ToolType } from "../gen/mnemesh/tools/v1/tools.js";
import type { Tool } from "../gen/mnemesh/tools/v1/tools.js";
import { ToolServiceDefinition } from "../gen/mnemesh/tools/v1/tools_service.js";
import { ToolReturnStatus } from "../gen/mnemesh/types/v1/message.js";
import type { ApprovalDecision, ContentPart, ToolCall } from "../gen/mnemesh/types/v1/message.js";
import { clients, connect, WRITE } from "./connection.js";
import { fail, listMessages, remove, search } from "./memory.js";
import { Turn } from "./turn.js";

const WATER_PLANTS = `
from typing import Literal

def water_plants(room: Literal["kitchen", "balcony"]) -> str:
    """Waters the plants of a room.

    Args:
        room: the room.
    """
    return f"The plants of the {room} have water."
`;
const LOCAL_TIME = "local_time";

/** Stores a tool that runs in the server's sandbox after a person has approved the call. */
async function createTool(channel: Channel): Promise<Tool> {
  const { tool } = await clients()
    .create(ToolServiceDefinition, channel)
    .upsertTool(
      {
        requestId: randomUUID(),
        tool: {
          type: ToolType.TOOL_TYPE_CUSTOM,
          sourceType: SourceType.SOURCE_TYPE_PYTHON,
          sourceCode: WATER_PLANTS,
          defaultRequiresApproval: true,
        },
      },
      WRITE,
    );
  console.log(`tool ${tool!.name} ${tool!.id}`);
  return tool!;
}

/** Creates an agent twice with one request id, as after a lost response: it is the same agent. */
async function createAgent(channel: Channel, tool: Tool): Promise<Agent> {
  const client = clients().create(AgentServiceDefinition, channel);
  const request = {
    requestId: randomUUID(),
    agent: {
      name: "example-typescript",
      model: process.env.MNEMESH_EXAMPLE_MODEL ?? "mnemesh/rehearsal",
      // The rules make even a model without intelligence call both tools.
      toolRules: [tool.name, LOCAL_TIME].map((toolName) => ({
        rule: { $case: "requiredBeforeExit" as const, value: { toolName } },
      })),
    },
    blocks: [{ label: "human" }, { label: "persona", value: "I look after a house." }],
    toolIds: [tool.id],
  };
  const agent = (await client.createAgent(request, WRITE)).agent!;
  const again = (await client.createAgent(request, WRITE)).agent!;
  console.log(`agent ${agent.name} ${agent.id}, sent twice: ${again.id === agent.id ? "same" : "another"} agent`);
  return agent;
}

/** Sends a message, and answers what the agent asks for until the turn ends. */
async function converse(channel: Channel, agentId: string): Promise<void> {
  const runs = clients().create(RunServiceDefinition, channel);
  const request = {
    requestId: randomUUID(),
    agentId,
    messages: [{ content: [textPart("My name is Ada. Remember that the key is under the mat.")] }],
    config: {
      streamTokens: true,
      clientTools: [
        {
          name: LOCAL_TIME,
          description: "Returns the time of the user's clock.",
          parameters: '{"type": "object", "properties": {}}',
        },
      ],
    },
  };
  let turn = await new Turn(runs, 3).follow((options) => runs.sendMessage(request, options));
  while (turn.stopReason === StopReason.STOP_REASON_REQUIRES_APPROVAL) {
    const answer = {
      requestId: randomUUID(),
      agentId,
      approvalRequestId: turn.approvalRequestId,
      decisions: turn.pendingCalls.map(decide),
    };
    turn = await new Turn(runs).follow((options) => runs.answerApproval(answer, options));
  }
}

/** Runs the client's own tool, and approves every other. */
function decide({ id, name }: ToolCall): ApprovalDecision {
  if (name !== LOCAL_TIME) {
    console.log(`> approve ${name}`);
    return { toolCallId: id, decision: { $case: "approve", value: {} } };
  }
  const now = new Date().toTimeString().slice(0, 5);
  console.log(`> return ${name}: ${now}`);
  const result = {
    toolCallId: id,
    name,
    status: ToolReturnStatus.TOOL_RETURN_STATUS_SUCCESS,
    content: [textPart(now)],
    stdout: [],
    stderr: [],
  };
  return { toolCallId: id, decision: { $case: "clientReturn", value: result } };
}

function textPart(text: string): ContentPart {
  return { part: { $case: "text", value: { text } } };
}

const channel = connect();
try {
  const tool = await createTool(channel);
  const agent = await createAgent(channel, tool);
  try {
    await converse(channel, agent.id);
    await search(channel, agent.id);
    await listMessages(channel, agent.id);
    await fail(channel);
  } finally {
    await remove(channel, agent.id, tool.id);
  }
} finally {
  channel.close();
}
