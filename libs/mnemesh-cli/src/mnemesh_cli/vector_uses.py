"""The report of an import on the vectors of passages: kept, or embedded again."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from mnemesh.archival.v1 import passages_service_pb2 as pb

_REASONS: Final[dict[int, str]] = {
    pb.VECTOR_USE_OTHER_EMBEDDER: "their archive has another embedder",
    pb.VECTOR_USE_OTHER_DIMENSION: "the embedder of their archive has another dimension",
}


def vector_report(uses: Mapping[int, int], without: Collection[str] = ()) -> dict[str, Any]:
    """Returns the numbers of passages for programs: with kept vectors, and embedded again with the reason.

    Args:
        uses: the number of passages by VectorUse.
        without: why passages came without a vector, if that is known.
    """
    reasons = {**_REASONS, pb.VECTOR_USE_UNSPECIFIED: "; ".join(sorted(without)) or "they came without a vector"}
    again = [{"passages": uses[use], "reason": reason} for use, reason in reasons.items() if uses.get(use)]
    return {"kept": uses.get(pb.VECTOR_USE_KEPT, 0), "embedded_again": again}


def vector_lines(uses: Mapping[int, int], without: Collection[str] = ()) -> list[str]:
    """Returns what `vector_report` has as lines; none if no passage was created."""
    if not any(uses.values()):
        return []
    report = vector_report(uses, without)
    again = [f"embedded again: {each['passages']} passages: {each['reason']}" for each in report["embedded_again"]]
    return [f"vectors kept: {report['kept']} passages", *again]
