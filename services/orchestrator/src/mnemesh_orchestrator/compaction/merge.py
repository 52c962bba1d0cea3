"""Memories that are drawn in parts, put together: what a later part says of a fact that an earlier one drew."""

import re
from collections.abc import Sequence
from dataclasses import replace

from mnemesh_orchestrator.model.episodes import Change, EpisodeCommit, FactChange

_PENDING = re.compile(r"new-(\d+)-(\d+)")


def folded(commits: Sequence[EpisodeCommit], more: Sequence[EpisodeCommit]) -> tuple[EpisodeCommit, ...]:
    """The commits of the earlier parts, then those of a later one.

    Facts that are not kept yet go by the ids that a snapshot gives them. One that is contradicted holds until then,
    and what contradicts it is new; one that is confirmed rests on more messages.
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
