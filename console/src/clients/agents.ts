// The calls for agents, their conversations, runs and schedules, groups, and models.

import { createClient } from "@connectrpc/connect";
import { AgentService } from "../../gen/mnemesh/agents/v1/agents_service_pb";
import { ConversationService } from "../../gen/mnemesh/agents/v1/conversations_service_pb";
import { GroupService } from "../../gen/mnemesh/agents/v1/groups_service_pb";
import { ModelService } from "../../gen/mnemesh/agents/v1/models_service_pb";
import { RunService } from "../../gen/mnemesh/agents/v1/runs_service_pb";
import { ScheduleService } from "../../gen/mnemesh/agents/v1/schedules_service_pb";
import { transport } from "../api";

export const agents = createClient(AgentService, transport);
export const conversations = createClient(ConversationService, transport);
export const models = createClient(ModelService, transport);
export const runs = createClient(RunService, transport);
export const schedules = createClient(ScheduleService, transport);
export const groups = createClient(GroupService, transport);
