"""What is to be remembered of messages that leave a window, from the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mnemesh.recall.v1 import episodes_pb2 as pb
from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument

from mnemesh_recall.model.episode_operations import EpisodeCommit
from mnemesh_recall.rpc.convert import episodes as convert

MAX_OPERATIONS: Final = 1_000
MAX_MEMORIES: Final = 100


def commit_in(given: pb.EpisodeCommit | rpc.CommitEpisodeRequest, prefix: str = "") -> EpisodeCommit:
    """An episode and its operations; `prefix` is that of the fields in the request."""
    if len(given.operations) > MAX_OPERATIONS:
        raise InvalidArgument(f"{prefix}operations must be at most {MAX_OPERATIONS}.", field=f"{prefix}operations")
    return EpisodeCommit(
        scope=convert.scope_in(given.scope, f"{prefix}scope") if given.HasField("scope") else None,
        episode=convert.new_episode(given.episode, f"{prefix}episode") if given.HasField("episode") else None,
        operations=tuple(
            convert.operation_in(operation, f"{prefix}operations[{index}]")
            for index, operation in enumerate(given.operations)
        ),
    )


def commits_in(given: Sequence[pb.EpisodeCommit], field: str) -> tuple[EpisodeCommit, ...]:
    """Several, each of which must hold something."""
    if len(given) > MAX_MEMORIES:
        raise InvalidArgument(f"{field} must be at most {MAX_MEMORIES}.", field=field)
    commits = tuple(commit_in(each, f"{field}[{place}].") for place, each in enumerate(given))
    for place, commit in enumerate(commits):
        if commit.episode is None and not commit.operations:
            raise InvalidArgument("An episode or operations must be given.", field=f"{field}[{place}].episode")
    return commits
