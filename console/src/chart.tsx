// A small chart of lines over time.

import { useEffect, useRef, useState } from "preact/hooks";
import { clock } from "./format";

export interface Line {
  name: string;
  /** In the order of the times; undefined is a gap. */
  values: (number | undefined)[];
}

interface ChartProps {
  title: string;
  /** In milliseconds. */
  times: number[];
  lines: Line[];
  /** Writes a value, such as "1.2 s". */
  format: (value: number) => string;
  /** The length of the axis in milliseconds. */
  span: number;
  /** What is shown until there is a value. */
  empty: string;
}

const HEIGHT = 132;
const TOP = 8;
const BOTTOM = 20;
const MOST_LINES = 5;

export function Chart({ title, times, lines, format, span, empty }: ChartProps) {
  const [width, setWidth] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  const shown = lines.slice(0, MOST_LINES);
  const known = shown.flatMap(({ values }) => values.filter((value) => value !== undefined));
  const most = rounded(Math.max(0, ...known));
  const end = times.at(-1) ?? 0;
  const x = (time: number) => width * (1 - (end - time) / span);
  const y = (value: number) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
  const summary = shown.map(({ name, values }) => `${name} ${last(values, format)}`).join(", ");
  return (
    <figure class="card chart">
      <figcaption>
        <h3>{title}</h3>
        <ul class="legend">
          {shown.map(({ name, values }, index) => (
            <li key={name}>
              <span class={`swatch line-${index}`} aria-hidden="true" />
              <span class="legend-name">{name}</span> <strong class="figure">{last(values, format)}</strong>
            </li>
          ))}
        </ul>
      </figcaption>
      <div class="plot" ref={box}>
        {known.length === 0 && <p class="muted">{empty}</p>}
        {known.length > 0 && width > 0 && (
          <svg width={width} height={HEIGHT} role="img" aria-label={`${title}: ${summary}`}>
            {[0, most / 2, most].map((value) => (
              <g key={value}>
                <line class="grid" x1="0" x2={width} y1={y(value)} y2={y(value)} />
                {value > 0 && (
                  <text class="axis" x="0" y={y(value) + 12}>
                    {format(value)}
                  </text>
                )}
              </g>
            ))}
            <text class="axis" x="0" y={HEIGHT - 5}>
              {clock(end - span)}
            </text>
            <text class="axis is-end" x={width} y={HEIGHT - 5}>
              {clock(end)}
            </text>
            {shown.map(({ name, values }, index) => (
              <path key={name} class={`plotted line-${index}`} d={pathOf(times, values, x, y)} />
            ))}
          </svg>
        )}
      </div>
    </figure>
  );
}

function last(values: (number | undefined)[], format: (value: number) => string): string {
  const value = values.at(-1);
  return value === undefined ? "–" : format(value);
}

/** Returns the lines between neighbours. A value without neighbours is a dot. */
function pathOf(
  times: number[],
  values: (number | undefined)[],
  x: (time: number) => number,
  y: (value: number) => number,
): string {
  let path = "";
  values.forEach((value, index) => {
    if (value !== undefined) {
      const point = `${x(times[index]!).toFixed(1)} ${y(value).toFixed(1)}`;
      const isFirst = index === 0 || values[index - 1] === undefined;
      path += isFirst ? `M${point}L${point}` : `L${point}`;
    }
  });
  return path;
}

/** Returns a round number that is not less: 1, 2 or 5 times a power of ten. */
function rounded(value: number): number {
  if (value <= 0) {
    return 1;
  }
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5, 10].find((factor) => factor * power >= value * 0.999) ?? 10);
}
