"""The revisions of memory blocks that an agent has seen."""

from collections.abc import Mapping

UNSEEN = 0
"""No block has this revision, so an edit that is based on it is refused."""


class SeenRevisions:
    """The block revisions that an agent knows, by label: those in its prompt, and those that its own edits created.

    An edit counts as seen only if it followed a seen revision. A change by another author before it stays unseen.
    """

    def __init__(self, revisions: Mapping[str, int]) -> None:
        self._revisions = dict(revisions)

    @property
    def revisions(self) -> Mapping[str, int]:
        """A copy of the known revisions."""
        return dict(self._revisions)

    def of(self, label: str) -> int:
        """Returns the seen revision of the block under a label, or UNSEEN."""
        return self._revisions.get(label, UNSEEN)

    def record_edit(self, label: str, revision: int, before: str | None = None) -> None:
        """Records that the agent created a revision of the block under `label`, which was called `before`."""
        if revision == self.of(label if before is None else before) + 1:
            self._revisions[label] = revision

    def remove(self, label: str) -> None:
        """Records that the agent no longer holds a block under the label."""
        self._revisions[label] = UNSEEN

    def restore(self, revisions: Mapping[str, int]) -> None:
        """Records the revisions that the journal holds of an earlier call of the same answer."""
        self._revisions.update(revisions)

    def since(self, before: Mapping[str, int]) -> Mapping[str, int] | None:
        """Returns the revisions that differ from `before`, or None."""
        changes = {label: revision for label, revision in self._revisions.items() if before.get(label) != revision}
        return changes or None
