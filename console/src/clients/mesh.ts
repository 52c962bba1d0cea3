// The calls for the state of services.

import { createClient } from "@connectrpc/connect";
import { ServerService } from "../../gen/mnemesh/server/v1/server_service_pb";
import { transport } from "../api";

export const servers = createClient(ServerService, transport);
