// Markdown as elements. No text becomes HTML: what is not known Markdown, tags among it, is shown as it was written.

import type { ComponentChildren, VNode } from "preact";
import { useMemo } from "preact/hooks";
import "./markdown.css";

/** How deep lists, quotes and emphasis nest. What is deeper is shown as it was written. */
const DEEPEST = 8;
/** The columns of a table. A wider one is shown as it was written: a row of bars alone would stop the page. */
const MOST_COLUMNS = 100;
/** The parts of one text: elements within its lines, and blocks. What comes after so many is shown as it was written. */
const MOST_PARTS = 4_000;
/** The length of a text in UTF-16 units. A longer one is shown as it was written. */
const LONGEST = 200_000;
const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(\S.*)$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(?:\s+(.*)|\s*)$/;
const QUOTE = /^ {0,3}>\s?(.*)$/;
const DELIMITER_ROW = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

/** The text of an answer. It is parsed again while tokens arrive. */
export function Markdown({ text }: { text: string }) {
  const shown = useMemo(() => formatted(text), [text]);
  return <div class="text markdown">{shown}</div>;
}

/** How many parts the text that is being read may still have. */
let partsLeft = 0;

function formatted(text: string): ComponentChildren {
  partsLeft = text.length > LONGEST ? 0 : MOST_PARTS;
  return blocksOf(text.split("\n"), 0);
}

/** Returns the blocks of lines: paragraphs, headings, lists, quotes, tables, code. */
function blocksOf(lines: string[], depth: number): VNode[] {
  const blocks: VNode[] = [];
  let at = 0;
  while (at < lines.length) {
    partsLeft -= 1;
    if (partsLeft < 0) {
      blocks.push(<p key={at}>{lines.slice(at).join("\n")}</p>);
      break;
    }
    const line = lines[at]!;
    const read = readers.find((reader) => reader.starts(lines, at, depth));
    if (!line.trim()) {
      at += 1;
    } else if (read) {
      const { block, end } = read.read(lines, at, depth);
      blocks.push(block);
      at = end;
    } else {
      let end = at + 1;
      while (end < lines.length && lines[end]!.trim() && !readers.some((each) => each.starts(lines, end, depth))) {
        end += 1;
      }
      blocks.push(<p key={at}>{inline(lines.slice(at, end).join("\n").trim(), depth)}</p>);
      at = end;
    }
  }
  return blocks;
}

interface Reader {
  starts: (lines: string[], at: number, depth: number) => boolean;
  read: (lines: string[], at: number, depth: number) => { block: VNode; end: number };
}

const code: Reader = {
  starts: (lines, at) => FENCE.test(lines[at]!),
  read: (lines, at) => {
    const [, fence = "", after = ""] = FENCE.exec(lines[at]!)!;
    const [language] = after.trim().split(/\s/, 1);
    const closing = new RegExp(`^ {0,3}${fence[0]}{${fence.length},}\\s*$`);
    let end = at + 1;
    while (end < lines.length && !closing.test(lines[end]!)) {
      end += 1;
    }
    const text = lines.slice(at + 1, end).join("\n");
    const block = (
      <pre key={at} class="code" tabIndex={0} aria-label={language ? `Code, ${language}` : "Code"}>
        <code>{text}</code>
      </pre>
    );
    return { block, end: end + 1 };
  },
};

const heading: Reader = {
  starts: (lines, at) => HEADING.test(lines[at]!),
  read: (lines, at, depth) => {
    const [, marks = "", text = ""] = HEADING.exec(lines[at]!)!;
    // The headings of the page are above those of an answer.
    const Level = `h${Math.min(marks.length + 3, 6)}` as "h4" | "h5" | "h6";
    return { block: <Level key={at}>{inline(withoutMarks(text), depth)}</Level>, end: at + 1 };
  },
};

/** Returns the text of a heading without the marks that may close it. */
function withoutMarks(text: string): string {
  const shown = text.trimEnd();
  let end = shown.length;
  while (shown[end - 1] === "#") {
    end -= 1;
  }
  return shown[end - 1] === " " ? shown.slice(0, end).trimEnd() : shown;
}

const rule: Reader = {
  starts: (lines, at) => RULE.test(lines[at]!),
  read: (_, at) => ({ block: <hr key={at} />, end: at + 1 }),
};

const quote: Reader = {
  starts: (lines, at, depth) => depth < DEEPEST && QUOTE.test(lines[at]!),
  read: (lines, at, depth) => {
    let end = at;
    const quoted: string[] = [];
    for (let found = QUOTE.exec(lines[end]!); found; found = QUOTE.exec(lines[end] ?? "")) {
      quoted.push(found[1]!);
      end += 1;
    }
    return { block: <blockquote key={at}>{blocksOf(quoted, depth + 1)}</blockquote>, end };
  },
};

const list: Reader = {
  starts: (lines, at, depth) => depth < DEEPEST && ITEM.test(lines[at]!),
  read: (lines, at, depth) => {
    const [, margin = "", marker = ""] = ITEM.exec(lines[at]!)!;
    const isOrdered = /\d/.test(marker);
    const items: VNode[] = [];
    let end = at;
    for (;;) {
      const found = ITEM.exec(lines[end] ?? "");
      if (!found || partsLeft <= 0 || found[1]!.length !== margin.length || /\d/.test(found[2]!) !== isOrdered) {
        break;
      }
      const content = [found[3] ?? ""];
      end = addContinuation(lines, end + 1, margin.length, content);
      items.push(<li key={end}>{tight(blocksOf(content, depth + 1))}</li>);
    }
    const first = Number.parseInt(marker, 10);
    const block = isOrdered ? (
      <ol key={at} start={first}>
        {items}
      </ol>
    ) : (
      <ul key={at}>{items}</ul>
    );
    return { block, end };
  },
};

/** Adds the further lines of an item, which are indented, and returns the number of the line after it. */
function addContinuation(lines: string[], at: number, margin: number, content: string[]): number {
  let end = at;
  while (end < lines.length) {
    const line = lines[end]!;
    const indent = line.length - line.trimStart().length;
    if (!line.trim()) {
      const next = lines[end + 1] ?? "";
      if (!next.trim() || next.length - next.trimStart().length <= margin) {
        // A blank line between two items does not end the list.
        return ITEM.test(next) ? end + 1 : end;
      }
    } else if (indent <= margin && (ITEM.test(line) || content.at(-1) === "" || readers.some((each) => each.starts(lines, end, 0)))) {
      return end;
    }
    content.push(line.slice(Math.min(indent, margin + 2)));
    end += 1;
  }
  return end;
}

/** Returns the blocks of an item: a single paragraph stands without its element, so that lists stay dense. */
function tight(blocks: VNode[]): ComponentChildren {
  const [first, ...rest] = blocks;
  return first?.type === "p" ? [(first.props as { children: ComponentChildren }).children, ...rest] : blocks;
}

const table: Reader = {
  starts: (lines, at) => lines[at]!.includes("|") && DELIMITER_ROW.test(lines[at + 1] ?? "") && lines[at + 1]!.includes("-") && cellsOf(lines[at]!).length <= MOST_COLUMNS,
  read: (lines, at, depth) => {
    const head = cellsOf(lines[at]!);
    const sides = cellsOf(lines[at + 1]!).map(sideOf);
    const rows: string[][] = [];
    let end = at + 2;
    while (end < lines.length && lines[end]!.includes("|") && partsLeft > 0) {
      rows.push(cellsOf(lines[end]!));
      partsLeft -= head.length;
      end += 1;
    }
    const block = (
      <div key={at} class="table" tabIndex={0}>
        <table>
          <thead>
            <tr>
              {head.map((cell, index) => (
                <th key={index} class={sides[index]}>
                  {inline(cell, depth)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row, number) => (
              <tr key={number}>
                {head.map((_, index) => (
                  <td key={index} class={sides[index]}>
                    {inline(row[index] ?? "", depth)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    );
    return { block, end };
  },
};

function cellsOf(line: string): string[] {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function sideOf(dashes: string): string {
  const isRight = dashes.endsWith(":");
  return isRight ? (dashes.startsWith(":") ? "is-centred" : "is-right") : "";
}

const readers: Reader[] = [code, heading, rule, quote, list, table];

const SPECIAL = /[\\`*_~[<!\n]|https?:\/\//g;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}_]/u;
const MARKS = [
  ["***", "both"],
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
] as const;

/** Returns a text of one block: emphasis, code, links, and line breaks where the text has them. */
function inline(text: string, depth: number): ComponentChildren[] {
  const nodes: ComponentChildren[] = [];
  const unclosed = new Set<string>();
  let start = 0;
  let at = 0;
  const add = (node: ComponentChildren, from: number, end: number) => {
    partsLeft -= 1;
    nodes.push(text.slice(start, from), node);
    start = at = end;
  };
  while (at < text.length && partsLeft > 0) {
    SPECIAL.lastIndex = at;
    const found = SPECIAL.exec(text);
    if (!found) {
      break;
    }
    const from = (at = found.index);
    const piece = inlineAt(text, from, depth, unclosed);
    if (piece) {
      add(piece.node, from, piece.end);
    } else {
      // A run of marks that opens nothing is skipped as a whole.
      const mark = text[from]!;
      at += 1;
      while ("*_~`".includes(mark) && text[at] === mark) {
        at += 1;
      }
    }
  }
  nodes.push(text.slice(start));
  return nodes.filter((node) => node !== "");
}

interface Piece {
  node: ComponentChildren;
  end: number;
}

/** Returns what begins at a special character; undefined if it is an ordinary one. */
function inlineAt(text: string, at: number, depth: number, unclosed: Set<string>): Piece | undefined {
  switch (text[at]) {
    case "\n":
      return { node: <br key={at} />, end: at + 1 };
    case "\\":
      return PUNCTUATION.test(text[at + 1] ?? "") ? { node: text[at + 1], end: at + 2 } : undefined;
    case "`":
      return codeAt(text, at, unclosed);
    case "!":
      // An image is shown as its link: the page loads nothing from other hosts.
      return text[at + 1] === "[" ? linkAt(text, at + 1, depth) : undefined;
    case "[":
      return linkAt(text, at, depth);
    case "<": {
      const found = /^<(https?:\/\/[^\s<>]+)>/.exec(text.slice(at, at + 2_100));
      return found ? { node: anchor(found[1]!, [found[1]!], at), end: at + found[0].length } : undefined;
    }
    case "h": {
      const [address = ""] = /^[^\s<>"`]+/.exec(text.slice(at, at + 2_000)) ?? [];
      const shown = withoutEnd(address);
      const node = anchor(shown, [shown], at);
      return typeof node === "string" ? undefined : { node, end: at + shown.length };
    }
    default:
      return depth < DEEPEST ? emphasisAt(text, at, depth, unclosed) : undefined;
  }
}

/** Returns an address without the punctuation of the sentence that it ends. */
function withoutEnd(address: string): string {
  let end = address.length;
  let unopened = address.split(")").length - address.split("(").length;
  for (;;) {
    const last = address[end - 1] ?? "";
    if (last === ")" && unopened > 0) {
      unopened -= 1;
    } else if (!".,;:!?'*_~".includes(last) || !last) {
      return address.slice(0, end);
    }
    end -= 1;
  }
}

function codeAt(text: string, at: number, unclosed: Set<string>): Piece | undefined {
  const [fence = ""] = /^`+/.exec(text.slice(at, at + 64)) ?? [];
  if (unclosed.has(fence)) {
    return undefined;
  }
  const end = closingTicks(text, at + fence.length, fence);
  if (end < 0) {
    unclosed.add(fence);
    return undefined;
  }
  const inner = text.slice(at + fence.length, end).replaceAll("\n", " ");
  const node = <code key={at}>{/^ .*[^ ].* $/.test(inner) ? inner.slice(1, -1) : inner}</code>;
  return { node, end: end + fence.length };
}

function closingTicks(text: string, from: number, fence: string): number {
  let at = text.indexOf(fence, from);
  while (at >= 0 && (text[at - 1] === "`" || text[at + fence.length] === "`")) {
    let after = at + 1;
    while (text[after] === "`") {
      after += 1;
    }
    at = text.indexOf(fence, after);
  }
  return at;
}

function linkAt(text: string, at: number, depth: number): Piece | undefined {
  // Bounded, so that a text of brackets alone does not take long.
  const found = /^\[((?:[^[\]\\]|\\.){1,1000})\]\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*")?\s*\)/.exec(
    text.slice(at, at + 3_100),
  );
  if (!found || depth >= DEEPEST) {
    return undefined;
  }
  const [whole, label = "", address = ""] = found;
  const node = anchor(address, inline(label, depth + 1), at);
  return typeof node === "string" ? undefined : { node, end: at + whole.length };
}

/** Returns a link to an address of http or https; the address as text if it is another one. */
function anchor(address: string, shown: ComponentChildren[], key: number): VNode | string {
  // Most addresses that are refused are no URLs at all, and an exception takes its time.
  if (!/^https?:/i.test(address)) {
    return address;
  }
  let url: URL;
  try {
    url = new URL(address);
  } catch {
    return address;
  }
  return (
    <a key={key} href={url.href} rel="noopener noreferrer" target="_blank">
      {shown}
    </a>
  );
}

function emphasisAt(text: string, at: number, depth: number, unclosed: Set<string>): Piece | undefined {
  for (const [mark, kind] of MARKS) {
    const from = at + mark.length;
    const before = text[at - 1] ?? "";
    const opens =
      text.startsWith(mark, at) &&
      /\S/.test(text[from] ?? "") &&
      text[from] !== mark[0] &&
      !(mark[0] === "_" && WORD.test(before)) &&
      !unclosed.has(mark);
    if (!opens) {
      continue;
    }
    const end = closingMark(text, from, mark, unclosed);
    if (end < 0) {
      unclosed.add(mark);
      continue;
    }
    const inner = inline(text.slice(from, end), depth + 1);
    return { node: emphasized(kind, inner, at), end: end + mark.length };
  }
  return undefined;
}

function emphasized(kind: (typeof MARKS)[number][1], inner: ComponentChildren[], key: number): VNode {
  if (kind === "both") {
    return (
      <strong key={key}>
        <em>{inner}</em>
      </strong>
    );
  }
  const Tag = kind;
  return <Tag key={key}>{inner}</Tag>;
}

/** Returns where a mark closes; negative if it does not. Code and escaped characters contain no marks. */
function closingMark(text: string, from: number, mark: string, unclosed: Set<string>): number {
  let at = from;
  while (at < text.length) {
    const character = text[at]!;
    if (character === "\\") {
      at += 2;
    } else if (character === "`") {
      const [fence = "`"] = /^`+/.exec(text.slice(at, at + 64)) ?? [];
      const end = unclosed.has(fence) ? -1 : closingTicks(text, at + fence.length, fence);
      if (end < 0) {
        unclosed.add(fence);
      }
      at = (end < 0 ? at : end) + fence.length;
    } else if (character === mark[0]) {
      let run = 1;
      while (text[at + run] === character) {
        run += 1;
      }
      const isClosing = at > from && /\S/.test(text[at - 1]!) && !(character === "_" && WORD.test(text[at + run] ?? ""));
      if (isClosing && (run === mark.length || run === 3 || (run > 3 && mark.length === 2))) {
        return run === 3 && mark.length < 3 ? at + (3 - mark.length) : at;
      }
      at += run;
    } else {
      at += 1;
    }
  }
  return -1;
}
