// The calls for folders and files.

import { createClient } from "@connectrpc/connect";
import { AgentFileService } from "../../gen/mnemesh/files/v1/agent_files_service_pb";
import { FileService } from "../../gen/mnemesh/files/v1/files_service_pb";
import { FolderService } from "../../gen/mnemesh/files/v1/folders_service_pb";
import { transport } from "../api";

export const folders = createClient(FolderService, transport);
export const files = createClient(FileService, transport);
export const agentFiles = createClient(AgentFileService, transport);
