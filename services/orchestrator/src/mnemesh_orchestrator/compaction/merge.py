"""Merges memories that were extracted in parts: a later part may confirm or contradict a fact of an earlier one."""

import re
from collections.abc import Sequence
from dataclasses import replace

from mnemesh_orchestrator.model.episodes import Change, EpisodeCommit, FactChange

_PENDING = re.compile(r"new-(\d+)-(\d+)")


def merge_commits(commits: Sequence[EpisodeCommit], later: Sequence[EpisodeCommit]) -> tuple[EpisodeCommit, ...]:
    """Returns the commits of the earlier parts, then those of a later one.

    Facts that are not stored yet have the ids of the snapshot. A contradicted or retracted fact is closed, and a
    contradiction is new. A confirmed fact gets more messages as evidence.
    """
    changes = [list(commit.changes) for commit in commits]
    for commit in later:
        own_changes: list[FactChange] = []
        for change in commit.changes:
            pending = _PENDING.fullmatch(change.fact_id or "")
            if pending is None:
                own_changes.append(change)
                continue
            commit_index, change_index = map(int, pending.groups())
            earlier = changes[commit_index][change_index]
            if change.change is Change.CONFIRM:
                sources = dict.fromkeys((*earlier.message_ids, *change.message_ids))
                changes[commit_index][change_index] = replace(earlier, message_ids=tuple(sources))
            else:
                changes[commit_index][change_index] = replace(earlier, ended_at=change.told_at)
                if change.change is not Change.RETRACT:
                    own_changes.append(replace(change, change=Change.ADD, fact_id=None))
        changes.append(own_changes)
    all_commits = zip((*commits, *later), changes, strict=True)
    return tuple(replace(commit, changes=tuple(own_changes)) for commit, own_changes in all_commits)
