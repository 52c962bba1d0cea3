// The address of a view is in the fragment: #/agents, #/agents/<id>/<panel>, #/agents/<id>/<panel>/<conversation>,
// #/agents/<id>/chat/<conversation>/<message>.

import { signal } from "@preact/signals";

export const PANELS = ["chat", "context", "memory", "runs"] as const;
export type Panel = (typeof PANELS)[number];

export interface Route {
  agentId: string;
  panel: Panel;
  /** Empty means the default conversation. */
  conversationId: string;
  /** The message that the chat shows first; empty means the newest one. */
  messageId: string;
}

function parse(fragment: string): Route {
  const [, root, agentId = "", panel = "", conversationId = "", messageId = ""] = fragment.replace(/^#/, "").split("/");
  const known = PANELS.find((name) => name === panel);
  return {
    agentId: root === "agents" ? decoded(agentId) : "",
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

/** Returns the link to a view. */
export function linkTo(agentId = "", panel: Panel = "chat", conversationId = "", messageId = ""): string {
  const parts = agentId ? ["agents", agentId, panel, conversationId, messageId] : ["agents"];
  return `#/${parts.filter(Boolean).map(encodeURIComponent).join("/")}`;
}
