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
import { report } from "./errors.js";
import { deleteAgent, deleteTool, fail, listMessages, search } from "./memory.js";
import { KEEPALIVE, Turn } from "./turn.js";

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

/**
 * Stores a tool that runs in the server's sandbox after a person has approved the call. Names of tools are unique within
 * an organization, so each run of the program has its own.
 */
async function createTool(channel: Channel): Promise<Tool> {
  const { tool } = await clients()
    .create(ToolServiceDefinition, channel)
    .createTool(
      {
        requestId: randomUUID(),
        tool: {
          type: ToolType.TOOL_TYPE_CUSTOM,
          sourceType: SourceType.SOURCE_TYPE_PYTHON,
          sourceCode: WATER_PLANTS.replaceAll("water_plants", `water_plants_${randomUUID().slice(0, 8)}`),
          defaultRequiresApproval: true,
        },
      },
      WRITE,
    );
  console.log(`tool ${tool!.name} ${tool!.id}`);
  return tool!;
}

/** The request for an agent. */
function agentWith(tool: Tool) {
  return {
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
}

async function createAgent(channel: Channel, request: ReturnType<typeof agentWith>): Promise<Agent> {
  const { agent } = await clients().create(AgentServiceDefinition, channel).createAgent(request, WRITE);
  console.log(`agent ${agent!.name} ${agent!.id}`);
  return agent!;
}

/** Sends the request again, as after a lost response: the same request id is the same agent. */
async function createAgain(channel: Channel, request: ReturnType<typeof agentWith>, first: Agent): Promise<void> {
  const { agent } = await clients().create(AgentServiceDefinition, channel).createAgent(request, WRITE);
  console.log(`sent again: ${agent!.id === first.id ? "the same" : "another"} agent`);
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
      maxSteps: 10,
      keepaliveSeconds: KEEPALIVE,
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

/** Runs the client's own tool, and approves every other. A program with a user asks here, and may deny the call. */
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

/** Runs a step, and prints its error if it fails: the steps after it, which delete what was created, run nevertheless. */
async function attempt(step: () => Promise<void>): Promise<void> {
  try {
    await step();
  } catch (error) {
    report(error);
    process.exitCode = 1;
  }
}

await attempt(async () => {
  const channel = connect();
  try {
    const tool = await createTool(channel);
    await attempt(async () => {
      const request = agentWith(tool);
      const agent = await createAgent(channel, request);
      await attempt(async () => {
        await createAgain(channel, request, agent);
        await converse(channel, agent.id);
        await search(channel, agent.id);
        await listMessages(channel, agent.id);
        await fail(channel);
      });
      await deleteAgent(channel, agent.id);
    });
    await deleteTool(channel, tool.id);
  } finally {
    channel.close();
  }
});
