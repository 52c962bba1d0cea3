// The servers of the Model Context Protocol: whether they answer, what they offer, and adding one.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { useState } from "preact/hooks";
import {
  McpAuthorizationGrant,
  type McpServer,
  McpServerSchema,
  McpServerStatus,
  type McpTool,
  McpSchemaStatus,
} from "../gen/mnemesh/tools/v1/mcp_servers_pb";
import { McpAuthorizationStatus, McpServerOrderBy, type TestMcpServerResponse } from "../gen/mnemesh/tools/v1/mcp_servers_service_pb";
import { baseUrl, newRequestId } from "./api";
import { mcpServers } from "./clients/tools";
import { FormDialog } from "./dialog";
import { count, words } from "./format";
import { Row } from "./list";
import { Busy, Empty, Field, ProblemBox, TextField, Time, useAction, useInterval, useLoad } from "./parts";
import { linkToSection } from "./route";

const PAGE = 100;
/** A server may take a while to start. */
const CONTACT_MS = 90_000;

export function McpServers() {
  const [isAdding, setAdding] = useState(false);
  const { value, problem, reload } = useLoad(async (signal) => {
    const request = { pageSize: PAGE, orderBy: McpServerOrderBy.NAME };
    return (await mcpServers.listMcpServers(request, { signal })).mcpServers;
  }, []);
  return (
    <section class="stack" aria-labelledby="mcp-title">
      <header class="page-head">
        <h2 id="mcp-title">MCP servers</h2>
        <button type="button" onClick={() => setAdding(true)}>
          Add a server
        </button>
      </header>
      <ProblemBox problem={problem} retry={reload} />
      {!value && !problem && <Busy what="Loading servers" />}
      {value?.length === 0 && (
        <Empty title="There is no MCP server yet.">
          <p>
            A server of the Model Context Protocol brings tools from elsewhere. Add its address; agents can then be given
            its tools.
          </p>
        </Empty>
      )}
      {value?.map((server) => (
        <Server key={server.id} server={server} onChange={reload} />
      ))}
      {isAdding && <AddServer onClose={() => setAdding(false)} onAdded={reload} />}
    </section>
  );
}

interface ServerProps {
  server: McpServer;
  onChange: () => Promise<void>;
}

function Server({ server, onChange }: ServerProps) {
  const [isOpen, setOpen] = useState(false);
  const [isDeleting, setDeleting] = useState(false);
  const action = useAction();
  const refresh = () =>
    action.run(async () => {
      try {
        const request = { requestId: newRequestId(), mcpServerId: server.id };
        await mcpServers.refreshMcpServer(request, { timeoutMs: CONTACT_MS });
      } finally {
        // A server that does not answer has a new status, too.
        await onChange();
      }
    });
  const remove = async (requestId: string) => {
    await mcpServers.deleteMcpServer({ requestId, mcpServerId: server.id });
    await onChange();
  };
  return (
    <details class="card step" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span>{server.name}</span>
        <span class="muted row-text mono">{addressOf(server)}</span>
        <span class="muted">{count(server.toolCount, "tool")}</span>
        <Status status={server.status} />
      </summary>
      {server.statusMessage && <p class={isBad(server.status) ? "problem" : "muted"}>{server.statusMessage}</p>}
      <ProblemBox problem={action.problem} />
      <Authorize server={server} onChange={onChange} />
      {isOpen && <Offered server={server} />}
      <Program server={server} />
      <div class="buttons">
        <button type="button" disabled={action.busy} onClick={() => void refresh()}>
          {action.busy ? "Contacting…" : "Read its tools again"}
        </button>
        <span class="muted">
          last contact <Time at={server.lastContactTime} />
          {server.protocolVersion && `, protocol ${server.protocolVersion}`}
        </span>
        <span class="spacer" />
        <button type="button" class="quiet danger" onClick={() => setDeleting(true)}>
          Delete
        </button>
      </div>
      {isDeleting && (
        <FormDialog title={`Delete ${server.name}?`} submit="Delete server" isDanger send={remove} onClose={() => setDeleting(false)}>
          <p>Its {count(server.toolCount, "tool")} are deleted with it. Agents that hold one lose it.</p>
        </FormDialog>
      )}
    </details>
  );
}

function isBad(status: McpServerStatus): boolean {
  return [McpServerStatus.UNREACHABLE, McpServerStatus.UNAUTHORIZED].includes(status);
}

function Status({ status }: { status: McpServerStatus }) {
  const kind = status === McpServerStatus.REACHABLE ? "good" : isBad(status) ? "bad" : "";
  return <span class={`tag ${kind}`}>{words(McpServerStatus[status])}</span>;
}

function addressOf({ transport }: McpServer): string {
  switch (transport.case) {
    case "stdio":
      return [transport.value.command, ...transport.value.args].join(" ");
    case "sse":
    case "streamableHttp":
      return transport.value.url;
    default:
      return "";
  }
}

/** The processes of a server that runs on the host of the mesh. */
function Program({ server: { program } }: { server: McpServer }) {
  if (!program) {
    return null;
  }
  return (
    <div class="stack tight">
      <p class="muted">
        {count(program.running, "process", "processes")} running, {count(program.starts, "start")},{" "}
        {count(program.crashes, "crash", "crashes")}
      </p>
      {program.stderr && (
        <pre class="code" tabIndex={0} aria-label="Standard error of the program">
          {program.stderr}
        </pre>
      )}
    </div>
  );
}

/** The tools that a server offered when they were last read. */
function Offered({ server }: { server: McpServer }) {
  const { value, problem, reload } = useLoad(
    async (signal) => {
      const request = { mcpServerId: server.id, pageSize: PAGE };
      return (await mcpServers.listMcpServerTools(request, { signal })).tools;
    },
    [server.id, server.toolCount, server.lastRefreshTime?.seconds],
  );
  return (
    <>
      <ProblemBox problem={problem} retry={reload} />
      {!value && !problem && <Busy what="Loading its tools" />}
      {value?.length === 0 && <p class="muted">It offers no tools.</p>}
      {value && value.length > 0 && <OfferedTools tools={value} />}
    </>
  );
}

function OfferedTools({ tools }: { tools: McpTool[] }) {
  return (
    <ul class="rows">
      {tools.map((tool) => (
        <Row
          key={tool.toolId || tool.name}
          name={tool.name}
          isMono
          href={tool.toolId && linkToSection("tools", tool.toolId)}
          text={tool.description?.split("\n", 1)[0]}
          tags={tool.schemaHealth?.status === McpSchemaStatus.INVALID && <span class="tag bad">invalid schema</span>}
        />
      ))}
    </ul>
  );
}

type Transport = "http" | "program";
type Access = "none" | "token" | "oauth";

const NEW_SERVER = { name: "", url: "", token: "", clientId: "", clientSecret: "", scope: "", command: "" };
type Draft = typeof NEW_SERVER;

function AddServer({ onClose, onAdded }: { onClose: () => void; onAdded: () => Promise<void> }) {
  const [transport, setTransport] = useState<Transport>("http");
  const [access, setAccess] = useState<Access>("none");
  const [draft, setDraft] = useState(NEW_SERVER);
  const [tested, setTested] = useState<TestMcpServerResponse>();
  const action = useAction();
  const change = (changed: Partial<Draft>) => {
    setDraft({ ...draft, ...changed });
    setTested(undefined);
  };
  const server = serverOf(transport, access, draft);
  const test = () =>
    action.run(async () => {
      const target = { case: "mcpServer" as const, value: server };
      setTested(await mcpServers.testMcpServer({ target }, { timeoutMs: CONTACT_MS }));
    });
  const add = async (requestId: string) => {
    await mcpServers.createMcpServer({ requestId, mcpServer: server }, { timeoutMs: CONTACT_MS });
    await onAdded();
  };
  const field = (key: keyof Draft) => ({ value: draft[key], onChange: (text: string) => change({ [key]: text }) });
  return (
    <FormDialog
      title="Add an MCP server"
      submit="Add server"
      send={add}
      onClose={onClose}
      buttons={
        <>
          <button type="button" disabled={action.busy || !(draft.url || draft.command)} onClick={() => void test()}>
            Test it
          </button>
          <span class="spacer" />
        </>
      }
    >
      <TextField label="Name" required autoFocus {...field("name")} />
      <Field label="Transport">
        {(id) => (
          <select
            id={id}
            value={transport}
            onChange={(event) => (setTransport(event.currentTarget.value as Transport), setTested(undefined))}
          >
            <option value="http">HTTP: the server runs elsewhere</option>
            <option value="program">Program: the mesh starts it in its sandbox</option>
          </select>
        )}
      </Field>
      {transport === "http" ? (
        <>
          <TextField label="URL" type="url" placeholder="https://example.com/mcp" required {...field("url")} />
          <Field label="Access">
            {(id) => (
              <select
                id={id}
                value={access}
                onChange={(event) => (setAccess(event.currentTarget.value as Access), setTested(undefined))}
              >
                <option value="none">without a token</option>
                <option value="token">with a token</option>
                <option value="oauth">OAuth: a person authorizes mnemesh</option>
              </select>
            )}
          </Field>
          {access === "token" && (
            <TextField
              label="Token"
              hint="Sent as a bearer token. It is stored encrypted and never shown again."
              type="password"
              required
              {...field("token")}
            />
          )}
          {access === "oauth" && <OAuthFields field={field} />}
        </>
      ) : (
        <TextField
          label="Command"
          hint="Such as “uvx mcp-server-time”. Its package is installed for it."
          required
          {...field("command")}
        />
      )}
      {tested && <Tested answer={tested} />}
      <ProblemBox problem={action.problem} />
    </FormDialog>
  );
}

function OAuthFields({ field }: { field: (key: keyof Draft) => { value: string; onChange: (text: string) => void } }) {
  return (
    <>
      <p class="hint">
        Add the server, then press Authorize there. mnemesh registers itself if you give no client. The authorization server
        sends the browser back to <code>{CALLBACK}</code>.
      </p>
      <div class="columns">
        <TextField label="Client id" hint="May be empty." {...field("clientId")} />
        <TextField label="Client secret" hint="May be empty." type="password" {...field("clientSecret")} />
      </div>
      <TextField label="Scope" hint="Empty means those that the server asks for." {...field("scope")} />
    </>
  );
}

function serverOf(transport: Transport, access: Access, draft: Draft): MessageInitShape<typeof McpServerSchema> {
  const name = draft.name.trim();
  if (transport === "http") {
    const auth = access === "token" ? { token: { value: draft.token } } : undefined;
    const oauth = {
      clientId: draft.clientId.trim() || undefined,
      clientSecret: draft.clientSecret ? { value: draft.clientSecret } : undefined,
      scope: draft.scope.trim() || undefined,
    };
    const value = { url: draft.url.trim(), auth, oauth: access === "oauth" ? oauth : undefined };
    return { name, transport: { case: "streamableHttp", value } };
  }
  const [program = "", ...args] = draft.command.trim().split(/\s+/);
  return { name, transport: { case: "stdio", value: { command: program, args } } };
}

function Tested({ answer }: { answer: TestMcpServerResponse }) {
  const names = answer.tools.map((tool) => tool.name).join(", ");
  return (
    <p role="status" class={isBad(answer.status) ? "problem" : "muted"}>
      <Status status={answer.status} /> {answer.statusMessage ?? `It offers ${count(answer.tools.length, "tool")}`}
      {names && `: ${names}`}
    </p>
  );
}

/** Where authorization servers send the browser: the gateway receives it without a token. */
const CALLBACK = `${baseUrl}/v1/tools/mcp/oauth/callback`;
const ASK_MS = 1_500;

interface Asked {
  url: string;
  state: string;
}

/** Lets a person authorize mnemesh at the server, in a page of the authorization server. */
function Authorize({ server, onChange }: ServerProps) {
  const [asked, setAsked] = useState<Asked>();
  const [failure, setFailure] = useState("");
  const action = useAction();
  const { transport } = server;
  const oauth = transport.case === "sse" || transport.case === "streamableHttp" ? transport.value.oauth : undefined;
  const start = () =>
    action.run(async () => {
      setFailure("");
      const request = { mcpServerId: server.id, redirectUri: CALLBACK };
      const { authorizationUrl, state } = await mcpServers.startMcpAuthorization(request, { timeoutMs: CONTACT_MS });
      setAsked({ url: authorizationUrl, state });
    });
  const look = () =>
    action.run(async () => {
      const { status, statusMessage } = await mcpServers.getMcpAuthorization({ mcpServerId: server.id, state: asked!.state });
      if (status !== McpAuthorizationStatus.PENDING) {
        setAsked(undefined);
        setFailure(status === McpAuthorizationStatus.FAILED ? (statusMessage ?? "The authorization was refused.") : "");
        await onChange();
      }
    });
  useInterval(look, asked && !action.problem ? ASK_MS : 0);
  if (!oauth || oauth.grant === McpAuthorizationGrant.CLIENT_CREDENTIALS) {
    return null;
  }
  // The address comes from another server, and a link must lead to a page.
  const isPage = asked && /^https?:/i.test(asked.url);
  return (
    <div class="stack tight">
      <div class="buttons">
        <span class={oauth.authorized ? "tag good" : "tag warn"}>{oauth.authorized ? "authorized" : "not authorized"}</span>
        {asked && isPage ? (
          <>
            <a class="button primary" href={asked.url} target="_blank" rel="noopener noreferrer">
              Open the page of the authorization server
            </a>
            <Busy what="Waiting for your answer there" />
          </>
        ) : (
          <button type="button" class={oauth.authorized ? "" : "primary"} disabled={action.busy} onClick={() => void start()}>
            {oauth.authorized ? "Authorize again" : "Authorize"}
          </button>
        )}
      </div>
      {asked && !isPage && <p class="problem">The authorization server names an address that is not one of a page.</p>}
      {failure && (
        <p class="problem" role="alert">
          {failure}
        </p>
      )}
      <ProblemBox problem={action.problem} />
    </div>
  );
}
