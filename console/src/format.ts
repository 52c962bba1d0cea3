// Times, durations, numbers and JSON as people read them.

import type { Duration, Timestamp } from "@bufbuild/protobuf/wkt";
import type { ContentPart, Message } from "../gen/mnemesh/types/v1/message_pb";

const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const EXACT = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "medium" });
const CLOCK = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const NUMBER = new Intl.NumberFormat("en");
const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [
  ["year", 31_536_000],
  ["month", 2_592_000],
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
];

const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB"];

export function milliseconds(value: Timestamp | Duration): number {
  return Number(value.seconds) * 1000 + value.nanos / 1e6;
}

/** Returns a time such as "5 minutes ago". */
export function ago(time: Timestamp): string {
  const seconds = (milliseconds(time) - Date.now()) / 1000;
  for (const [unit, size] of UNITS) {
    if (Math.abs(seconds) >= size) {
      return RELATIVE.format(Math.round(seconds / size), unit);
    }
  }
  return "just now";
}

export function exact(time: Timestamp): string {
  return EXACT.format(milliseconds(time));
}

export function clock(time: Timestamp | number): string {
  return CLOCK.format(typeof time === "number" ? time : milliseconds(time));
}

/** Returns a duration such as "340 ms" or "2.4 s". */
export function duration(value: number): string {
  if (value < 1000) {
    return `${Math.round(value)} ms`;
  }
  if (value < 60_000) {
    return `${(value / 1000).toFixed(1)} s`;
  }
  const minutes = Math.floor(value / 60_000);
  if (minutes < 60) {
    return `${minutes} min ${Math.floor((value % 60_000) / 1000)} s`;
  }
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

export function number(value: number | bigint): string {
  return NUMBER.format(value);
}

export function count(value: number, one: string, many = `${one}s`): string {
  return `${number(value)} ${value === 1 ? one : many}`;
}

/** Returns a size such as "812 B", "3.4 kB" or "12 MB". */
export function bytes(value: number | bigint): string {
  let size = Number(value);
  let unit = 0;
  while (size >= 1000 && unit < BYTE_UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${size.toFixed(unit && size < 10 ? 1 : 0)} ${BYTE_UNITS[unit]}`;
}

/** Returns a cost in billionths of a dollar as dollars. */
export function dollars(nano: bigint): string {
  return `$${(Number(nano) / 1e9).toFixed(4)}`;
}

/** Returns JSON with indentation; other text as it is. Numbers keep their digits. */
export function indented(text: string): string {
  let depth = 0;
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  return text.replace(/"(?:[^"\\]|\\.)*"|[{[]\s*[}\]]|[{}[\],:]|\s+|[^\s{}[\],:"]+/g, (piece) => {
    switch (piece) {
      case "{":
      case "[":
        depth += 1;
        return `${piece}\n${"  ".repeat(depth)}`;
      case "}":
      case "]":
        depth -= 1;
        return `\n${"  ".repeat(depth)}${piece}`;
      case ",":
        return `,\n${"  ".repeat(depth)}`;
      case ":":
        return ": ";
      default:
        return piece.trim() ? piece.replace(/^([{[])\s*([}\]])$/, "$1$2") : "";
    }
  });
}

/** Returns the words of a name of an enum: "LETTA_V1" and "END_TURN" become "letta v1" and "end turn". */
export function words(name: string | undefined): string {
  return (name ?? "").toLowerCase().replaceAll("_", " ");
}

export function textOf(content: ContentPart[]): string {
  return content.flatMap(({ part }) => (part.case === "text" ? [part.value.text] : [])).join("\n");
}

/** Returns the whole content of a message, as the record has it. */
export function messageText(message: Message): string {
  const reasoning = message.content.flatMap(({ part }) => (part.case === "reasoning" ? [part.value.text] : []));
  return [
    ...reasoning,
    textOf(message.content),
    ...message.toolCalls.map((call) => `→ ${call.name} ${call.arguments}`),
    ...message.toolReturns.map((each) => `← ${each.name} ${textOf(each.content)}`),
  ]
    .filter(Boolean)
    .join("\n");
}
