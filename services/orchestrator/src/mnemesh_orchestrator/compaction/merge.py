"""Merges memories that were extracted in parts: what a later part says about a fact of an earlier one."""

import re
from collections.abc import Sequence
from dataclasses import replace

from mnemesh_orchestrator.model.episodes import Change, EpisodeCommit, FactChange

_PENDING = re.compile(r"new-(\d+)-(\d+)")


def folded(commits: Sequence[EpisodeCommit], more: Sequence[EpisodeCommit]) -> tuple[EpisodeCommit, ...]:
    """Returns the commits of the earlier parts, then those of a later one.

    Facts that are not stored yet have the ids of the snapshot. A contradicted fact is closed, and its contradiction is
    new. A confirmed fact gets more messages as evidence.
    """
    changes = [list(commit.changes) for commit in commits]
    for commit in more:
        own: list[FactChange] = []
        for change in commit.changes:
            found = _PENDING.fullmatch(change.fact_id or "")
            if found is None:
                own.append(change)
                continue
            place, number = map(int, found.groups())
            earlier = changes[place][number]
            if change.change is Change.CONFIRM:
                sources = dict.fromkeys((*earlier.message_ids, *change.message_ids))
                changes[place][number] = replace(earlier, message_ids=tuple(sources))
            else:
                changes[place][number] = replace(earlier, ended_at=change.told_at)
                own.append(replace(change, change=Change.ADD, fact_id=None))
        changes.append(own)
    return tuple(replace(commit, changes=tuple(own)) for commit, own in zip((*commits, *more), changes, strict=True))
