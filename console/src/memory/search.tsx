// What the searches of memory share: the field, the range of days, scores with their reasons, marked words.

import { useState } from "preact/hooks";
import type { PassageHit } from "../../gen/mnemesh/archival/v1/passages_service_pb";
import type { MessageHit } from "../../gen/mnemesh/recall/v1/messages_service_pb";

interface SearchBoxProps {
  label: string;
  onSearch: (query: string) => void;
}

export function SearchBox({ label, onSearch }: SearchBoxProps) {
  const [query, setQuery] = useState("");
  return (
    <form class="search" role="search" aria-label={label} onSubmit={(event) => (event.preventDefault(), onSearch(query.trim()))}>
      <input
        type="search"
        aria-label={label}
        placeholder={label}
        value={query}
        onInput={(event) => setQuery(event.currentTarget.value)}
      />
      <button type="submit">Search</button>
    </form>
  );
}

/** Days such as "2026-11-29"; empty means no bound. */
export interface Days {
  start: string;
  end: string;
}

export const ALL_DAYS: Days = { start: "", end: "" };

/** Returns the days as a request has them: those of the time zone of this browser. */
export function daysFilter({ start, end }: Days): { startDate?: string; endDate?: string; timeZone?: string } {
  return start || end
    ? {
        startDate: start || undefined,
        endDate: end || undefined,
        timeZone: Intl.DateTimeFormat().resolvedOptions().timeZone,
      }
    : {};
}

/** The first and the last day of what is searched. */
export function DayRange({ of, days, onChange }: { of: string; days: Days; onChange: (days: Days) => void }) {
  return (
    <>
      <label class="inline">
        From
        <input
          type="date"
          aria-label={`First day of the ${of}`}
          value={days.start}
          max={days.end || undefined}
          onChange={(event) => onChange({ ...days, start: event.currentTarget.value })}
        />
      </label>
      <label class="inline">
        to
        <input
          type="date"
          aria-label={`Last day of the ${of}`}
          value={days.end}
          min={days.start || undefined}
          onChange={(event) => onChange({ ...days, end: event.currentTarget.value })}
        />
      </label>
    </>
  );
}

/** The score of a hit, with what it was computed from. */
export function Score({ hit, isShown }: { hit: PassageHit | MessageHit; isShown: boolean }) {
  if (!isShown) {
    return null;
  }
  const parts = [
    ["words", hit.textScore, hit.textRank],
    ["meaning", hit.vectorScore, hit.vectorRank],
    ["reranker", hit.rerankScore, undefined],
  ] as const;
  return (
    <>
      <strong class="figure">{hit.score.toFixed(3)}</strong>
      {parts.map(([name, score, rank]) =>
        score === undefined ? null : (
          <span key={name} class="muted">
            {name} {score.toFixed(3)}
            {rank !== undefined && ` (rank ${rank})`}
          </span>
        ),
      )}
    </>
  );
}

/** A text with the words of the query marked. */
export function Highlighted({ text, query }: { text: string; query: string }) {
  const wanted = query.match(/[\p{L}\p{N}]{2,}/gu) ?? [];
  if (wanted.length === 0) {
    return <>{text}</>;
  }
  const parts = text.split(new RegExp(`(${wanted.join("|")})`, "giu"));
  return <>{parts.map((part, index) => (index % 2 ? <mark key={index}>{part}</mark> : part))}</>;
}

/** Returns the tags of a field: words with commas between them. */
export function tagsOf(text: string): string[] {
  return [...new Set(text.split(",").map((tag) => tag.trim()))].filter(Boolean);
}
