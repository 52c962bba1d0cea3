// The members of a group as a graph: who may speak to whom, and who speaks now.

import { useEffect, useRef, useState } from "preact/hooks";
import { linkTo } from "./route";

export interface GraphNode {
  id: string;
  name: string;
  /** Shown below the name, such as "2 turns". */
  note: string;
  isManager: boolean;
  isSpeaking: boolean;
}

export interface GraphEdge {
  from: string;
  to: string;
  /** Dashed: it selects or informs; it does not speak there. */
  isQuiet: boolean;
}

interface Place {
  x: number;
  y: number;
}

const WIDTH = 132;
const HEIGHT = 50;
const GAP = 22;
/** An ellipse has place for so many members; more of them are in rows. */
const MOST_ON_ELLIPSE = 12;
const ELLIPSE_WIDTH = 560;
const LONGEST_NAME = 16;
const ARROW = 9;

export function Graph({ nodes, edges, label }: { nodes: GraphNode[]; edges: GraphEdge[]; label: string }) {
  const [width, setWidth] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  const { places, height } = placed(nodes, width);
  return (
    <div class="graph" ref={box}>
      {width > 0 && (
        <svg width={width} height={height} role="group" aria-label={label}>
          <defs>
            <marker id="arrow" viewBox="0 0 8 8" refX="5" refY="4" markerWidth="9" markerHeight="9" orient="auto">
              <path d="M1 1l5 3-5 3" class="arrow" />
            </marker>
          </defs>
          {edges.map(({ from, to, isQuiet }) => (
            <Edge
              key={`${from} ${to}`}
              from={places.get(from)}
              to={places.get(to)}
              isQuiet={isQuiet}
              isMutual={edges.some((other) => other.from === to && other.to === from)}
            />
          ))}
          {nodes.map((node) => (
            <Node key={node.id} node={node} place={places.get(node.id)!} />
          ))}
        </svg>
      )}
    </div>
  );
}

interface EdgeProps {
  from: Place | undefined;
  to: Place | undefined;
  isQuiet: boolean;
  /** Whether there is an arrow in the other direction. */
  isMutual: boolean;
}

/** An arrow with its head in the middle, where no box hides it. */
function Edge({ from, to, isQuiet, isMutual }: EdgeProps) {
  if (!from || !to) {
    return null;
  }
  // Two heads of one line stand beside each other.
  const head = 0.5 + (isMutual ? ARROW / Math.hypot(to.x - from.x, to.y - from.y) : 0);
  const points = [from, { x: from.x + (to.x - from.x) * head, y: from.y + (to.y - from.y) * head }, to];
  return (
    <polyline
      class={isQuiet ? "edge is-quiet" : "edge"}
      points={points.map(({ x, y }) => `${x},${y}`).join(" ")}
      marker-mid="url(#arrow)"
    />
  );
}

function Node({ node, place }: { node: GraphNode; place: Place }) {
  const kind = `${node.isSpeaking ? "is-speaking" : ""} ${node.isManager ? "is-manager" : ""}`;
  const short = node.name.length > LONGEST_NAME ? `${node.name.slice(0, LONGEST_NAME - 1)}…` : node.name;
  const role = node.isManager ? "manager" : "member";
  const state = node.isSpeaking ? "speaks now" : node.note;
  return (
    <a class={`node ${kind}`} href={linkTo(node.id)} aria-label={[node.name, role, state].filter(Boolean).join(", ")}>
      <title>{node.name}</title>
      <g transform={`translate(${place.x - WIDTH / 2} ${place.y - HEIGHT / 2})`}>
        <rect width={WIDTH} height={HEIGHT} rx="12" />
        <text x={WIDTH / 2} y="21" class="node-name">
          {short}
        </text>
        <text x={WIDTH / 2} y="39" class="node-note">
          {node.isSpeaking ? "speaks" : node.note || role}
        </text>
      </g>
    </a>
  );
}

function placed(nodes: GraphNode[], width: number): { places: Map<string, Place>; height: number } {
  const manager = nodes.find(({ isManager }) => isManager);
  const members = nodes.filter((node) => node !== manager);
  const isEllipse = width >= ELLIPSE_WIDTH && members.length > 2 && members.length <= MOST_ON_ELLIPSE;
  return isEllipse ? onEllipse(members, manager, width) : inRows(members, manager, width);
}

function onEllipse(members: GraphNode[], manager: GraphNode | undefined, width: number) {
  const horizontal = Math.min((width - WIDTH) / 2 - 4, 320);
  const vertical = 78 + members.length * 9;
  const centre = { x: width / 2, y: vertical + HEIGHT / 2 + 4 };
  const places = new Map(
    members.map(({ id }, index) => {
      const angle = (2 * Math.PI * index) / members.length - Math.PI / 2;
      return [id, { x: centre.x + horizontal * Math.cos(angle), y: centre.y + vertical * Math.sin(angle) }];
    }),
  );
  if (manager) {
    places.set(manager.id, centre);
  }
  return { places, height: Math.max(...[...places.values()].map(({ y }) => y)) + HEIGHT / 2 + 4 };
}

function inRows(members: GraphNode[], manager: GraphNode | undefined, width: number) {
  const columns = Math.max(1, Math.min(members.length, Math.floor((width + GAP) / (WIDTH + GAP))));
  const places = new Map<string, Place>();
  const below = manager ? 2 * HEIGHT : 0;
  if (manager) {
    places.set(manager.id, { x: width / 2, y: HEIGHT / 2 + 4 });
  }
  members.forEach(({ id }, index) => {
    const row = Math.floor(index / columns);
    const inRow = Math.min(columns, members.length - row * columns);
    const left = width / 2 - ((inRow - 1) * (WIDTH + GAP)) / 2;
    places.set(id, {
      x: left + (index % columns) * (WIDTH + GAP),
      y: below + row * (HEIGHT + GAP + 12) + HEIGHT / 2 + 4,
    });
  });
  const rows = Math.ceil(members.length / columns);
  return { places, height: below + rows * (HEIGHT + GAP + 12) - GAP - 4 };
}
