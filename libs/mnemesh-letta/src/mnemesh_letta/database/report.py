"""The report of a migration: counts on both sides, and what was not migrated."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

_SHOWN: Final = 50
"""The most reasons that are printed."""
TYPES: Final = (
    "organizations", "providers", "mcp servers", "tools", "identities", "folders", "files", "blocks",
    "block revisions", "agents", "conversations", "messages", "runs", "steps", "archives", "passages", "groups",
)  # fmt: skip
"""The rows of the report, in their order."""


@dataclass(slots=True)
class TypeCounts:
    """What happened to the records of one type."""

    letta: int = 0
    """Rows in Letta's database."""
    created: int = 0
    """Created by this run."""
    existing: int = 0
    """Found in the mesh: from an earlier run, or because the mesh had them before."""
    skipped: int = 0
    """Not migrated; `Report.problems` says why."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that was not migrated, or not as it was."""

    type: str
    id: str
    reason: str
    is_loss: bool = True
    """False if the resource was migrated with a change."""


@dataclass(slots=True)
class Report:
    """The result of a migration."""

    counts: dict[str, TypeCounts] = field(default_factory=lambda: {name: TypeCounts() for name in TYPES})
    problems: list[Problem] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    """New ids by the ids in Letta, where they differ."""
    vector_uses: Counter[int] = field(default_factory=Counter)
    """The passages that this run created, by archival's VectorUse."""
    without_vector: set[str] = field(default_factory=set)
    """Why passages were sent without a vector."""

    def skip(self, type_: str, id_: str, reason: str) -> None:
        """Records something that is not migrated."""
        self.counts[type_].skipped += 1
        self.problems.append(Problem(type_, id_, reason))

    def change(self, type_: str, id_: str, reason: str) -> None:
        """Records something that is migrated with a change."""
        self.problems.append(Problem(type_, id_, reason, is_loss=False))

    @property
    def is_complete(self) -> bool:
        """Whether every row of a reported type is in the mesh."""
        return not any(problem.is_loss for problem in self.problems)

    def as_json(self) -> dict[str, Any]:
        """Returns the report for programs."""
        return {
            "counts": {
                name: {
                    "letta": counts.letta,
                    "created": counts.created,
                    "existing": counts.existing,
                    "skipped": counts.skipped,
                }
                for name, counts in self.counts.items()
            },
            "skipped": [_problem(problem) for problem in self.problems if problem.is_loss],
            "changed": [_problem(problem) for problem in self.problems if not problem.is_loss],
            "ids": self.ids,
        }


def table_lines(report: Report) -> list[str]:
    """Returns the counts as lines of a table of at most 80 characters."""
    lines = [f"{'':<18}{'in Letta':>10}{'created':>10}{'existing':>10}{'skipped':>10}"]
    for name, counts in report.counts.items():
        if counts.letta or counts.created or counts.existing or counts.skipped:
            values = (counts.letta, counts.created, counts.existing, counts.skipped)
            lines.append(f"{name:<18}" + "".join(f"{value:>10}" for value in values))
    return lines


def problem_lines(report: Report) -> list[str]:
    """Returns what was skipped or changed, grouped by type and reason, as lines."""
    groups: dict[tuple[bool, str, str], list[str]] = {}
    for problem in report.problems:
        groups.setdefault((not problem.is_loss, problem.type, problem.reason), []).append(problem.id)
    lines = []
    for (is_change, type_, reason), ids in sorted(groups.items())[:_SHOWN]:
        verb = "changed" if is_change else "skipped"
        lines.append(f"{verb}: {_subject(type_, ids)}: {reason}")
    if len(groups) > _SHOWN:
        lines.append(f"… and {len(groups) - _SHOWN} further reasons: see --json")
    return lines


def _subject(type_: str, ids: Iterable[str]) -> str:
    known = list(ids)
    return f"{type_} {known[0]}" if len(known) == 1 else f"{len(known)} {type_} ({known[0]}, …)"


def _problem(problem: Problem) -> dict[str, str]:
    return {"type": problem.type, "id": problem.id, "reason": problem.reason}
