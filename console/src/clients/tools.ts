// The calls for tools and MCP servers.

import { createClient } from "@connectrpc/connect";
import { ExecutionService } from "../../gen/mnemesh/tools/v1/execution_service_pb";
import { McpServerService } from "../../gen/mnemesh/tools/v1/mcp_servers_service_pb";
import { ToolService } from "../../gen/mnemesh/tools/v1/tools_service_pb";
import { transport } from "../api";

export const tools = createClient(ToolService, transport);
export const executions = createClient(ExecutionService, transport);
export const mcpServers = createClient(McpServerService, transport);
