// The tools of the organization: their list, and the servers of the Model Context Protocol that offer some of them.

import { useState } from "preact/hooks";
import { SortOrder } from "../gen/mnemesh/types/v1/paging_pb";
import { PackagesState, type Tool, ToolType } from "../gen/mnemesh/tools/v1/tools_pb";
import { ToolOrderBy } from "../gen/mnemesh/tools/v1/tools_service_pb";
import { tools } from "./clients/tools";
import { words } from "./format";
import { Filter, Listing, Row, usePages } from "./list";
import { McpServers } from "./mcp";
import { Empty, Time } from "./parts";
import { linkToSection } from "./route";
import { descriptionOf } from "./schema";
import { ToolPage } from "./tool";

const PAGE = 100;
/** Which tools are listed: those that were added to the built-in ones, all, or those of one type. */
type Shown = "added" | "all" | ToolType;
/** The id in the address of a tool that does not exist yet. */
export const NEW = "new";

export function Tools({ itemId }: { itemId: string }) {
  if (itemId) {
    return <ToolPage toolId={itemId === NEW ? "" : itemId} />;
  }
  return (
    <div class="page">
      <ToolList />
      <McpServers />
    </div>
  );
}

function ToolList() {
  const [search, setSearch] = useState("");
  const [shown, setShown] = useState<Shown>("added");
  const pages = usePages(
    async (pageToken, signal) => {
      const filter = {
        ...(search ? { textSearch: search } : {}),
        types: typeof shown === "number" ? [shown] : [],
        excludeTypes: shown === "added" ? [ToolType.BUILTIN] : [],
      };
      const orderBy = ToolOrderBy.UPDATE_TIME;
      const request = { pageSize: PAGE, pageToken, filter, orderBy, order: SortOrder.DESCENDING };
      const found = await tools.listTools(request, { signal });
      return { rows: found.tools, token: found.nextPageToken };
    },
    [search, shown],
  );
  return (
    <section class="stack" aria-labelledby="tools-title">
      <header class="page-head">
        <h1 id="tools-title">Tools</h1>
        <Filter label="Search tools" value={search} onChange={setSearch} />
        <select
          class="narrow"
          aria-label="Type of tools"
          value={shown}
          onChange={({ currentTarget: { value: chosen } }) => setShown(Number(chosen) || (chosen as Shown))}
        >
          <option value="added">added tools</option>
          <option value="all">all tools</option>
          {[ToolType.BUILTIN, ToolType.CUSTOM, ToolType.MCP, ToolType.CLIENT].map((each) => (
            <option key={each} value={each}>
              {typeName(each)}
            </option>
          ))}
        </select>
        <a class="button primary" href={linkToSection("tools", NEW)}>
          New tool
        </a>
      </header>
      <Listing pages={pages} of="Tools" empty={<NoTools isFiltered={search !== "" || shown !== "added"} />}>
        {(tool) => <ToolRow key={tool.id} tool={tool} />}
      </Listing>
    </section>
  );
}

function NoTools({ isFiltered }: { isFiltered: boolean }) {
  return isFiltered ? (
    <Empty title="No tool matches." />
  ) : (
    <Empty title="There is no tool yet.">
      <p>
        A tool is a function in Python or TypeScript that agents call. Write the first one with <strong>New tool</strong>,
        try it here, then give it to an agent. Built-in tools are in <strong>all tools</strong>.
      </p>
    </Empty>
  );
}

function ToolRow({ tool }: { tool: Tool }) {
  return (
    <Row
      name={tool.name}
      isMono
      href={linkToSection("tools", tool.id)}
      text={firstLine(descriptionOf(tool))}
      tags={
        <>
          <span class="tag">{typeName(tool.type)}</span>
          {tool.defaultRequiresApproval && <span class="tag warn">asks for approval</span>}
          {tool.packages?.state === PackagesState.FAILED && <span class="tag bad">packages failed</span>}
        </>
      }
      end={<Time at={tool.updateTime} />}
    />
  );
}

export function typeName(type: ToolType): string {
  return type === ToolType.BUILTIN ? "built-in" : type === ToolType.MCP ? "MCP" : words(ToolType[type]);
}

function firstLine(text: string): string {
  return text.trim().split("\n", 1)[0] ?? "";
}
