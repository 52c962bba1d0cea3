// The calls for the tiers of memory.

import { createClient } from "@connectrpc/connect";
import { PassageService } from "../../gen/mnemesh/archival/v1/passages_service_pb";
import { BlockService } from "../../gen/mnemesh/blocks/v1/blocks_service_pb";
import { EpisodeService } from "../../gen/mnemesh/recall/v1/episodes_service_pb";
import { MessageService } from "../../gen/mnemesh/recall/v1/messages_service_pb";
import { transport } from "../api";

export const blocks = createClient(BlockService, transport);
export const messages = createClient(MessageService, transport);
export const episodes = createClient(EpisodeService, transport);
export const passages = createClient(PassageService, transport);
