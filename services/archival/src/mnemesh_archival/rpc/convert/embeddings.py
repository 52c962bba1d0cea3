"""Conversion of vectors of texts."""

from __future__ import annotations

from mnemesh.archival.v1 import embeddings_service_pb2 as pb

from mnemesh_archival.model.embeddings import EmbeddedTexts


def embedded_texts_to_proto(embedded: EmbeddedTexts) -> pb.EmbedTextsResponse:
    """Returns the vectors of texts as a response."""
    return pb.EmbedTextsResponse(
        embedder=embedded.embedder,
        dimension=embedded.dimension,
        embeddings=[pb.Embedding(values=vector.tolist()) for vector in embedded.vectors],
        tokens=embedded.tokens,
    )
