// The waterfall of a run: its steps, tools and the runs that it started, on one axis of time.

import { duration } from "../format";
import { type Lane, type Span, sumByTier, type Tier } from "./times";

const TITLES: Record<Tier, string> = {
  model: "model",
  core: "core memory",
  recall: "recall",
  archival: "archival",
  files: "files",
  tools: "other tools",
  commit: "commit",
  waits: "waits in the queue",
};

export function Waterfall({ lanes }: { lanes: Lane[] }) {
  const spans = lanes.flatMap((lane) => lane.spans);
  const start = Math.min(...spans.map(({ from }) => from));
  const length = Math.max(1, Math.max(...spans.map(({ to }) => to)) - start);
  const percent = (value: number) => `${(100 * value) / length}%`;
  const place = ({ from, to }: Span) => {
    const share = Math.max((100 * (to - from)) / length, 0.4);
    return { left: `${Math.min((100 * (from - start)) / length, 100 - share)}%`, width: `${share}%` };
  };
  const sums = sumByTier(lanes);
  const waits = spans.some(({ tier }) => tier === "waits");
  return (
    <figure class="waterfall">
      <figcaption class="muted legend">
        {sums.map(([tier, sum]) => (
          <span key={tier}>
            <span class={`swatch tier-${tier}`} aria-hidden="true" /> {TITLES[tier]} {duration(sum)}
          </span>
        ))}
        {waits && (
          <span>
            <span class="swatch tier-waits" aria-hidden="true" /> {TITLES.waits}
          </span>
        )}
        <span class="spacer" />
        <span>{duration(length)} in all</span>
      </figcaption>
      <ol>
        {lanes.map((lane) => (
          <li key={lane.key} class={`lane-${lane.kind}`}>
            <span class="lane-name" title={lane.name}>
              {lane.name}
            </span>
            <span class="track" role="img" aria-label={described(lane)}>
              {lane.spans.map((span, index) => (
                <span
                  key={index}
                  class={`span tier-${span.tier}`}
                  style={place(span)}
                  title={`${TITLES[span.tier]} ${duration(span.to - span.from)}`}
                />
              ))}
            </span>
            <span class="figure">{duration(lengthOf(lane))}</span>
          </li>
        ))}
      </ol>
      <div class="scale" aria-hidden="true">
        {[0, 0.25, 0.5, 0.75, 1].map((share) => (
          <span key={share} style={{ left: percent(share * length) }}>
            {duration(share * length)}
          </span>
        ))}
      </div>
    </figure>
  );
}

function lengthOf({ spans }: Lane): number {
  return Math.max(...spans.map(({ to }) => to)) - Math.min(...spans.map(({ from }) => from));
}

function described(lane: Lane): string {
  return [lane.name, ...lane.spans.map((span) => `${TITLES[span.tier]} ${duration(span.to - span.from)}`)].join(", ");
}
