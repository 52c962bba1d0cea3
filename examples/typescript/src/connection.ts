// The connection to mnemesh: address, TLS, token, retries. README.md lists the environment variables.

import { readFileSync } from "node:fs";
import { ChannelCredentials, createChannel, createClientFactory, Metadata } from "nice-grpc";
import type { Channel, ClientFactory } from "nice-grpc";
import { deadlineMiddleware } from "nice-grpc-client-middleware-deadline";
import type { DeadlineOptions } from "nice-grpc-client-middleware-deadline";
import { errorDetailsClientMiddleware } from "nice-grpc-error-details";

// Deadlines of calls, in milliseconds, for a busy laptop; docs/clients.md has those of a server.
export const READ = { deadline: 30_000 };
export const WRITE = { deadline: 60_000 };
export const TURN = { deadline: 600_000 };

const SERVICE_CONFIG = new URL("../../../../proto/service_config.json", import.meta.url);

/** Returns a channel for the clients of all services: the orchestrator forwards the calls of the others. */
export function connect(): Channel {
  const authorities = pem("CA");
  const credentials =
    authorities === null
      ? ChannelCredentials.createInsecure()
      : ChannelCredentials.createSsl(authorities, pem("KEY"), pem("CERT"));
  return createChannel(process.env.MNEMESH_TARGET ?? "localhost:50050", credentials, {
    "grpc.service_config": readFileSync(SERVICE_CONFIG, "utf8"), // repeats idempotent calls that fail with UNAVAILABLE
    "grpc.max_receive_message_length": 64 * 1024 * 1024,
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 10_000,
  });
}

/** Returns a factory of clients that know deadlines and the details of errors, and send the token with each call. */
export function clients(): ClientFactory<DeadlineOptions> {
  const token = process.env.MNEMESH_TOKEN;
  return createClientFactory()
    .use((call, options) =>
      call.next(call.request, {
        ...options,
        metadata: token ? Metadata(options.metadata).set("authorization", `Bearer ${token}`) : options.metadata,
      }),
    )
    .use(errorDetailsClientMiddleware)
    .use(deadlineMiddleware);
}

function pem(kind: string): Buffer | null {
  const path = process.env[`MNEMESH_GRPC_TLS_${kind}_FILE`];
  return path ? readFileSync(path) : null;
}
