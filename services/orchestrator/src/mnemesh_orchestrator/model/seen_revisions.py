"""Which revision of each memory block an agent has seen."""

from collections.abc import Mapping

UNSEEN = 0
"""No block is at this revision, so that an edit which is based on it is refused."""


class SeenRevisions:
    """The block revisions that an agent knows, by label: those that its prompt showed, and those its own edits made.

    An edit counts as seen only where it follows on what was seen: what somebody else wrote before it stays unseen.
    """

    def __init__(self, revisions: Mapping[str, int]) -> None:
        self._revisions = dict(revisions)

    @property
    def revisions(self) -> Mapping[str, int]:
        """A copy of what is known."""
        return dict(self._revisions)

    def of(self, label: str) -> int:
        """The revision that was seen of the block under a label; UNSEEN where none was shown."""
        return self._revisions.get(label, UNSEEN)

    def edited(self, label: str, revision: int, before: str | None = None) -> None:
        """The agent made that revision of the block under `label`, which was called `before`."""
        if revision == self.of(label if before is None else before) + 1:
            self._revisions[label] = revision

    def gone(self, label: str) -> None:
        """The agent holds no block under the label any more."""
        self._revisions[label] = UNSEEN

    def learnt(self, revisions: Mapping[str, int]) -> None:
        """What a journal says that an earlier call of the same answer made of it."""
        self._revisions.update(revisions)

    def since(self, before: Mapping[str, int]) -> Mapping[str, int] | None:
        """What differs from `before`, or None."""
        changes = {label: revision for label, revision in self._revisions.items() if before.get(label) != revision}
        return changes or None
