// The servers of the Model Context Protocol: whether they answer, what they offer, and adding one.

import { type MessageInitShape } from "@bufbuild/protobuf";
import { useState } from "preact/hooks";
import {
  type McpServer,
  McpServerSchema,
  McpServerStatus,
  type McpTool,
  McpSchemaStatus,
} from "../gen/mnemesh/tools/v1/mcp_servers_pb";
import { McpServerOrderBy, type TestMcpServerResponse } from "../gen/mnemesh/tools/v1/mcp_servers_service_pb";
import { mcpServers, newRequestId } from "./api";
import { count, words } from "./format";
import { Busy, Dialog, Empty, Field, ProblemBox, Time, useAction, useLoad } from "./parts";
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
      {isDeleting && <DeleteServer server={server} onClose={() => setDeleting(false)} onDeleted={onChange} />}
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
        <li class="row" key={tool.toolId || tool.name}>
          {tool.toolId ? (
            <a class="row-name mono" href={linkToSection("tools", tool.toolId)}>
              {tool.name}
            </a>
          ) : (
            <span class="row-name mono">{tool.name}</span>
          )}
          <span class="row-text muted">{tool.description?.split("\n", 1)[0]}</span>
          <span class="row-tags">
            {tool.schemaHealth?.status === McpSchemaStatus.INVALID && <span class="tag bad">invalid schema</span>}
          </span>
        </li>
      ))}
    </ul>
  );
}

type Transport = "http" | "program";

function AddServer({ onClose, onAdded }: { onClose: () => void; onAdded: () => Promise<void> }) {
  const [requestId] = useState(newRequestId);
  const [transport, setTransport] = useState<Transport>("http");
  const [draft, setDraft] = useState({ name: "", url: "", token: "", command: "" });
  const [tested, setTested] = useState<TestMcpServerResponse>();
  const action = useAction();
  const change = (changed: Partial<typeof draft>) => {
    setDraft({ ...draft, ...changed });
    setTested(undefined);
  };
  const server = serverOf(transport, draft);
  const test = () =>
    action.run(async () => {
      const target = { case: "mcpServer" as const, value: server };
      setTested(await mcpServers.testMcpServer({ target }, { timeoutMs: CONTACT_MS }));
    });
  const add = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      await mcpServers.createMcpServer({ requestId, mcpServer: server }, { timeoutMs: CONTACT_MS });
      onClose();
      await onAdded();
    });
  };
  const text = (key: keyof typeof draft, settings: { type?: string; placeholder?: string; required?: boolean }) => (
    (id: string) => (
      <input
        id={id}
        {...settings}
        autocomplete="off"
        value={draft[key]}
        onInput={(event) => change({ [key]: event.currentTarget.value })}
      />
    )
  );
  return (
    <Dialog title="Add an MCP server" onClose={onClose}>
      <form onSubmit={add}>
        <Field label="Name">{text("name", { required: true })}</Field>
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
            <Field label="URL">{text("url", { type: "url", placeholder: "https://example.com/mcp", required: true })}</Field>
            <Field label="Token" hint="Sent as a bearer token. It is stored encrypted and never shown again.">
              {text("token", { type: "password" })}
            </Field>
          </>
        ) : (
          <Field label="Command" hint="Such as “uvx mcp-server-time”. Its package is installed for it.">
            {text("command", { required: true })}
          </Field>
        )}
        {tested && <Tested answer={tested} />}
        <ProblemBox problem={action.problem} />
        <footer class="dialog-foot">
          <button type="button" disabled={action.busy || !(draft.url || draft.command)} onClick={() => void test()}>
            Test it
          </button>
          <span class="spacer" />
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={action.busy}>
            Add server
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

function serverOf(
  transport: Transport,
  { name, url, token, command }: { name: string; url: string; token: string; command: string },
): MessageInitShape<typeof McpServerSchema> {
  if (transport === "http") {
    const auth = token ? { token: { value: token } } : undefined;
    return { name: name.trim(), transport: { case: "streamableHttp", value: { url: url.trim(), auth } } };
  }
  const [program = "", ...args] = command.trim().split(/\s+/);
  return { name: name.trim(), transport: { case: "stdio", value: { command: program, args } } };
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

interface DeleteServerProps {
  server: McpServer;
  onClose: () => void;
  onDeleted: () => Promise<void>;
}

function DeleteServer({ server, onClose, onDeleted }: DeleteServerProps) {
  const [requestId] = useState(newRequestId);
  const action = useAction();
  const confirm = () =>
    action.run(async () => {
      await mcpServers.deleteMcpServer({ requestId, mcpServerId: server.id });
      onClose();
      await onDeleted();
    });
  return (
    <Dialog title={`Delete ${server.name}?`} onClose={onClose}>
      <p>Its {count(server.toolCount, "tool")} are deleted with it. Agents that hold one lose it.</p>
      <ProblemBox problem={action.problem} />
      <footer class="dialog-foot">
        <button type="button" autoFocus onClick={onClose}>
          Keep it
        </button>
        <button type="button" class="primary danger" disabled={action.busy} onClick={() => void confirm()}>
          Delete server
        </button>
      </footer>
    </Dialog>
  );
}
