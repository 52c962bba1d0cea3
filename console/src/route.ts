// The address of a view is in the fragment: #/agents, #/agents/<id>/<panel>/<conversation>/<message>, #/tools,
// #/tools/<id> and so on.

import { signal } from "@preact/signals";

/** What the mesh has, each with a list and a page per item. */
export const SECTIONS = ["agents", "tools", "files", "groups", "mesh"] as const;
export type Section = (typeof SECTIONS)[number];
export const PANELS = ["chat", "context", "memory", "runs", "settings"] as const;
export type Panel = (typeof PANELS)[number];

export interface Route {
  /** Undefined: the address names no view. */
  section: Section | undefined;
  /** The tool, folder or group that is shown; empty for their list. */
  itemId: string;
  agentId: string;
  panel: Panel;
  /** Empty means the default conversation. */
  conversationId: string;
  /** The message that the chat shows first; empty means the newest one. */
  messageId: string;
}

function parse(fragment: string): Route {
  const [, root = "", id = "", panel = "", conversationId = "", messageId = ""] = fragment.replace(/^#/, "").split("/");
  const section = root === "" ? "agents" : SECTIONS.find((name) => name === root);
  const known = panel === "" ? "chat" : PANELS.find((name) => name === panel);
  return {
    section: section === "agents" && !known ? undefined : section,
    itemId: section === "agents" ? "" : decoded(id),
    agentId: root === "agents" ? decoded(id) : "",
    panel: known ?? "chat",
    conversationId: decoded(conversationId),
    messageId: decoded(messageId),
  };
}

/** Returns a part of the address; a person may have typed it. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = signal(parse(location.hash));
addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

/** Returns the link to an agent's view, or to the list of agents. */
export function linkTo(agentId = "", panel: Panel = "chat", conversationId = "", messageId = ""): string {
  return link(agentId ? ["agents", agentId, panel, conversationId, messageId] : ["agents"]);
}

/** Returns the link to a section of the mesh, or to one of its items. */
export function linkToSection(section: Section, itemId = ""): string {
  return link([section, itemId]);
}

function link(parts: string[]): string {
  return `#/${parts.filter(Boolean).map(encodeURIComponent).join("/")}`;
}
