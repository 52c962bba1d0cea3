// The panel Memory: one part per tier.

import { signal } from "@preact/signals";
import type { Agent } from "../../gen/mnemesh/agents/v1/agents_pb";
import { Blocks } from "./blocks";
import { Facts } from "./facts";
import "./memory.css";
import { Messages } from "./messages";
import { Passages } from "./passages";

const PARTS = {
  core: { title: "Core", View: Blocks },
  archival: { title: "Archival", View: Passages },
  recall: { title: "Recall", View: Messages },
  facts: { title: "Facts", View: Facts },
} as const;
type Part = keyof typeof PARTS;

/** The part that was open last: another panel in between does not lose it. */
const shown = signal<Part>("core");

export function Memory({ agent }: { agent: Agent }) {
  const { View } = PARTS[shown.value];
  return (
    <div class="panel">
      <div class="page">
        <div class="parts" role="group" aria-label="Tiers of memory">
          {(Object.keys(PARTS) as Part[]).map((part) => (
            <button key={part} type="button" aria-pressed={part === shown.value} onClick={() => (shown.value = part)}>
              {PARTS[part].title}
            </button>
          ))}
        </div>
        <View key={agent.id} agent={agent} />
      </div>
    </div>
  );
}
