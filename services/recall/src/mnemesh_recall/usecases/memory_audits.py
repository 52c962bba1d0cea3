"""The audit of episodes and facts."""

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from mnemesh_kit.call_context import Principal
from mnemesh_kit.time import Clock

from mnemesh_recall.model.episodes import Episode, Fact, Scope
from mnemesh_recall.model.findings import (
    MAX_COMPARED,
    AuditPage,
    Finding,
    FindingKind,
    MemoryAudit,
    comparable,
    orphan_finding,
    pair_findings,
    require_audit,
    secret_finding,
    stale_finding,
)
from mnemesh_recall.model.statements import statement_keys, statement_of
from mnemesh_recall.store.episodes import MemoryAuditStore

_PAIRS: Final = frozenset({FindingKind.DUPLICATE, FindingKind.NEAR_DUPLICATE, FindingKind.CONTRADICTION})


class MemoryAuditService:
    """Looks for memories that should not stay as they are. Changes nothing."""

    def __init__(self, store: MemoryAuditStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def audit(self, caller: Principal, audit: MemoryAudit) -> AuditPage:
        """Returns a page of findings. Raises InvalidArgument for values that are out of bounds."""
        require_audit(audit)
        organization_id, now = caller.organization_id, self._clock.now()
        memories, position = await self._store.list_stored(
            organization_id, audit.scopes, audit.position, audit.page_size
        )
        existing: frozenset[str] = frozenset()
        if FindingKind.ORPHAN in audit.kinds:
            sources = {id_ for memory in memories if isinstance(memory, Fact) for id_ in memory.source.message_ids}
            existing = await self._store.find_existing_messages(organization_id, sorted(sources))
        scopes: set[Scope] = set()
        if audit.kinds & _PAIRS:
            scopes = {memory.scope for memory in memories if isinstance(memory, Fact) and comparable(memory, now)}
        valid = {scope: await self._store.list_valid(organization_id, scope, MAX_COMPARED) for scope in scopes}
        # Reading the words of 5,000 facts takes a while.
        findings = await asyncio.to_thread(_findings, audit, memories, valid, existing, now)
        return AuditPage(tuple(findings), len(memories), position)


def _findings(
    audit: MemoryAudit,
    memories: Sequence[Episode | Fact],
    valid: Mapping[Scope, Sequence[Fact]],
    existing: frozenset[str],
    now: datetime,
) -> list[Finding]:
    neighbours = {scope: _Neighbours(facts) for scope, facts in valid.items()}
    findings: list[Finding | None] = []
    for memory in memories:
        if FindingKind.SECRET in audit.kinds:
            findings.append(secret_finding(memory))
        if isinstance(memory, Episode):
            continue
        if FindingKind.STALE in audit.kinds:
            findings.append(stale_finding(memory, now, audit.stale_days))
        if FindingKind.ORPHAN in audit.kinds:
            findings.append(orphan_finding(memory, existing))
        if memory.scope in neighbours and comparable(memory, now):
            findings += pair_findings(memory, neighbours[memory.scope].before(memory), audit.kinds)
    return [finding for finding in findings if finding is not None]


class _Neighbours:
    """The valid facts of a scope, found by what related statements have in common."""

    def __init__(self, newest_first: Sequence[Fact]) -> None:
        self._facts = newest_first
        self._places = {fact.id: place for place, fact in enumerate(newest_first)}
        statements = [statement_of(fact.text) for fact in newest_first]
        frequency = Counter(word for statement in statements for word in statement.word_set)
        self._keys = [statement_keys(statement, frequency) for statement in statements]
        self._by_key: dict[Hashable, list[int]] = {}
        for place, keys in enumerate(self._keys):
            for key in keys:
                self._by_key.setdefault(key, []).append(place)

    def before(self, fact: Fact) -> Iterator[Fact]:
        """Yields the facts that were stored before one and may be related to it, newest first."""
        own = self._places.get(fact.id)
        if own is None:
            return
        places = {place for key in self._keys[own] for place in self._by_key[key] if place > own}
        yield from (self._facts[place] for place in sorted(places))
