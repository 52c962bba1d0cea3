"""The search of tools by what they do: by the words of their names, descriptions and parameters, and by similarity."""

import asyncio
import json
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import structlog
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_searchable_fields, require_text
from mnemesh_retrieval.embedder import Embedder, Vector
from mnemesh_retrieval.errors import EmbedderError
from mnemesh_retrieval.ranking.scores import Candidate, Ranked, RankingConstants, fuse_scores, rarity, saturation
from mnemesh_retrieval.words.analysis import analysed, query_words
from mnemesh_types.tools import ToolFilter

from mnemesh_tools.model.tools import Tool, ToolOrder, ToolSpec
from mnemesh_tools.store.tools import ToolStore, ToolTransaction

DEFAULT_LIMIT: Final = 10
MAX_LIMIT: Final = 100
MAX_QUERY_CHARS: Final = 10_000
_TEXT_CHARS: Final = 4_000
"""The part of a tool's description and parameters that is searched."""
_LEAST_SIMILARITY: Final = 0.55
"""Of that of messages. Descriptions of tools are short and abstract, so that what means the same is less similar."""
_CACHED: Final = 10_000
_AT_ONCE: Final = 32
_SENTENCE_CHARS: Final = 300
_log = structlog.get_logger("mnemesh.tools.search")


@dataclass(frozen=True, slots=True)
class ToolHit:
    """A tool that a search found."""

    tool: Tool
    score: float
    text_rank: int | None
    vector_rank: int | None


@dataclass(slots=True)
class _Document:
    parts: tuple[str, ...]
    """The whole text, the name with what the tool does in a sentence, and the name: any of them may be similar."""
    words: Counter[str]
    length: int
    vectors: tuple[Vector, ...] = ()


class ToolFinder:
    """Ranks the tools of an organization. It remembers the words and the vectors of definitions."""

    def __init__(self, store: ToolStore, embedder: Embedder, seed: Callable[[Principal], Awaitable[None]]) -> None:
        """Stores the parts.

        Args:
            store: The tools.
            embedder: Turns definitions and queries into vectors.
            seed: Stores the built-in tools of an organization that has none yet.
        """
        self._store = store
        self._embedder = embedder
        self._seed = seed
        self._documents: OrderedDict[tuple[str, str, int], _Document] = OrderedDict()

    async def search(self, caller: Principal, query: str, filter_: ToolFilter, limit: int) -> Sequence[ToolHit]:
        """Returns the tools that match the filter and the query, best first; for a blank query the newest.

        Raises:
            InvalidArgument: The query is too long, or the limit is not between 0 (the default of 10) and 100.
        """
        require_text(query, "query", max_chars=MAX_QUERY_CHARS)
        if not 0 <= limit <= MAX_LIMIT:
            raise InvalidArgument(f"limit must be between 0 and {MAX_LIMIT}.", field="limit")
        limit = limit or DEFAULT_LIMIT
        require_searchable_fields(filter_)
        await self._seed(caller)
        tools = await self._store.read(caller.organization_id, lambda tx: _all_tools(tx, filter_))
        if not query.strip():
            return [ToolHit(tool, 0.0, None, None) for tool in tools[:limit]]
        documents = await self._read(tools)
        similarities = await self._similarities(query, documents)
        scores = _word_scores(query, documents)
        name = query.strip().casefold()
        candidates = [
            Candidate(index, scores[index], similarities[index], is_exact=tool.spec.name.casefold() == name)
            for index, tool in enumerate(tools)
        ]
        ranked: list[Ranked[int]] = fuse_scores(
            candidates,
            self._embedder.similarity_weight,
            _CONSTANTS,
            depth=limit,
            least_similarity=self._embedder.least_similarity * _LEAST_SIMILARITY,
        )
        return [ToolHit(tools[hit.id], hit.score, hit.text_rank, hit.vector_rank) for hit in ranked[:limit]]

    async def _read(self, tools: Sequence[Tool]) -> list[_Document]:
        """Returns the documents of tools, and lets other calls run meanwhile: thousands take seconds."""
        documents: list[_Document] = []
        for start in range(0, len(tools), _AT_ONCE):
            documents += map(self._document, tools[start : start + _AT_ONCE])
            await asyncio.sleep(0)
        return documents

    def _document(self, tool: Tool) -> _Document:
        key = tool.organization_id, tool.id, tool.revision
        found = self._documents.get(key)
        if found is None:
            text = _text(tool.spec)
            words, _ = analysed(text)
            found = self._documents[key] = _Document(_parts(tool.spec, text), Counter(words), len(words))
            if len(self._documents) > _CACHED:
                self._documents.popitem(last=False)
        else:
            self._documents.move_to_end(key)
        return found

    async def _similarities(self, query: str, documents: Sequence[_Document]) -> list[float]:
        missing = [document for document in documents if not document.vectors]
        texts = [part for document in missing for part in document.parts]
        try:
            *vectors, wanted = await self._embedder.embed([*texts, query])
        except EmbedderError as error:
            _log.warning("vector_search_skipped", error=str(error))
            return [0.0] * len(documents)
        rest = iter(vectors)
        for document in missing:
            document.vectors = tuple(islice(rest, len(document.parts)))
        return [max(float(vector @ wanted) for vector in document.vectors) for document in documents]


_CONSTANTS: Final = RankingConstants()


def _all_tools(tx: ToolTransaction, filter_: ToolFilter) -> list[Tool]:
    """Returns every tool that matches, the newest first."""
    return list(tx.find_tools(filter_, ToolOrder.CREATE_TIME))


def _text(spec: ToolSpec) -> str:
    """Returns the name as words, the description, the tags, and the names and descriptions of the parameters."""
    schema: dict[str, Any] = json.loads(spec.json_schema)
    properties = schema.get("parameters", {}).get("properties", {})
    parts = [spec.name.replace("_", " "), spec.description or schema.get("description", ""), " ".join(spec.tags)]
    for name, parameter in properties.items():
        described = parameter.get("description", "") if isinstance(parameter, dict) else ""
        parts.append(f"{name.replace('_', ' ')}: {described}")
    return "\n".join(part for part in parts if part)[:_TEXT_CHARS]


def _parts(spec: ToolSpec, text: str) -> tuple[str, ...]:
    name = spec.name.replace("_", " ")
    described = spec.description or json.loads(spec.json_schema).get("description", "")
    sentence = described.partition("\n")[0].partition(". ")[0][:_SENTENCE_CHARS]
    return tuple(dict.fromkeys((text, f"{name}: {sentence}", name)))


def _word_scores(query: str, documents: Sequence[_Document]) -> list[float]:
    """Returns the BM25 score of each document."""
    terms = query_words(query)
    counts = [_counts(document, terms) for document in documents]
    holders = Counter(word for found in counts for word in found)
    average = max(1.0, sum(document.length for document in documents) / max(1, len(documents)))
    weight = saturation(average, _CONSTANTS)
    rarities = {word: rarity(number, len(documents)) for word, number in holders.items()}
    return [
        sum(rarities[word] * weight(count, document.length) for word, count in found.items())
        for found, document in zip(counts, documents, strict=True)
    ]


def _counts(document: _Document, terms: dict[str, str]) -> Counter[str]:
    """Returns how often a document has each word of the query, whatever the language of the form."""
    found: Counter[str] = Counter()
    for term in terms.keys() & document.words.keys():
        found[terms[term]] = max(found[terms[term]], document.words[term])
    return found
