"""Which passages belong together: by the word of the caller, as parts of a file, or as turns of a dialogue."""

import random
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from mnemesh.archival.v1.archives_pb2 import Passage
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_CONTINUITY_CONTINUOUS,
    PASSAGE_CONTINUITY_SEPARATE,
    PASSAGE_SEARCH_MODE_HYBRID,
    PASSAGE_SEARCH_MODE_TEXT,
    PassageFilter,
    SearchPassagesRequest,
)
from mnemesh_archival.model.passages import Asking, Continuity, Turn, cues_of, dialogue_positions
from mnemesh_archival.store.tables import passages
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import Database
from mnemesh_testkit.plugin import sampled

from .conftest import ArchivalServer

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAMED = ("Ada: Have you been to the coast?", "Ben: Yes, last May.", "Ada: Lovely.", "Ben: It rained.")
FACTS = ("Ada likes orchids.", "Ben rows on Sundays.", "Cleo cooks ramen.", "Dan hears jazz.", "Eva plays chess.")


def turn(number: int, text: str, hours: float = 0.0, continuity: Continuity = Continuity.AUTOMATIC) -> Turn:
    cues = cues_of(text)
    return Turn(number, NOON + timedelta(hours=hours), cues.speaker, cues.asking, continuity)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (NAMED, {0, 1, 2, 3}),
        (("Did you buy the boat?", "I did, this morning.", "Is it old?", "It is."), {0, 1, 2, 3}),
        (FACTS, set()),
        (("Ada: likes orchids.", "Ben: rows.", "Ada: knits.", "Ben: sings."), set()),
        (("Ada: Why?", "Ben: How?", "Cleo: Who?", "Dan: When?", "Eva: What?", "Finn: Where?"), set()),
        ((*FACTS, "Is the roof to be mended?", *FACTS), set()),
        (("Who?", "What?", "When?"), set()),
    ],
)
def test_dialogues_are_recognised(texts: tuple[str, ...], expected: set[int]) -> None:
    assert dialogue_positions(turn(number, text) for number, text in enumerate(texts)) == expected


def test_a_dialogue_ends_with_time_and_with_passages_that_stand_alone() -> None:
    texts = [turn(number, text) for number, text in enumerate(NAMED)]
    late = [turn(4, "Ada: Well.", 7), turn(5, "Ben: Hm.", 7)]
    assert dialogue_positions([*texts, *late]) == {0, 1, 2, 3}
    alone = turn(4, "Ada: Well.", continuity=Continuity.SEPARATE)
    assert dialogue_positions([*texts, alone, turn(5, "Ben: Hm.")]) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("text", "speaker", "asking"),
    [
        ("Ada: Are you well?", "Ada", Asking.AT_END),
        ("Are you well? I am.", "", Asking.SOMEWHERE),
        ("It is so.", "", Asking.NONE),
    ],
)
def test_cues_of_a_text(text: str, speaker: str, asking: Asking) -> None:
    cues = cues_of(text)
    assert (cues.speaker, cues.asking) == (speaker, asking)


async def stored(archival: ArchivalServer) -> list[Continuity]:
    """Returns the continuity of all passages, in the order of their positions."""
    database = Database.open(archival.config.database)
    query = sa.select(passages.c.continuity).order_by(passages.c.archive_id, passages.c.position)
    found = await database.read(lambda conn: conn.execute(query).scalars().all())
    await database.close()
    return [Continuity(value) for value in found]


async def test_dialogue_is_recognised_when_its_later_turns_arrive(archival: ArchivalServer) -> None:
    archive = await archival.archive()
    for text in ("A fact on harbours.", *NAMED):
        await archival.insert(archive, text)
    assert await stored(archival) == [Continuity.AUTOMATIC, *[Continuity.DIALOGUE] * 4]
    await archival.insert(archive, *FACTS)
    assert (await stored(archival))[-2:] == [Continuity.AUTOMATIC] * 2


async def test_request_and_file_decide(archival: ArchivalServer) -> None:
    archive = await archival.archive()
    await archival.insert(archive, *NAMED, continuity=PASSAGE_CONTINUITY_SEPARATE)
    await archival.insert(archive, *FACTS[:2], continuity=PASSAGE_CONTINUITY_CONTINUOUS)
    await archival.insert(archive, Passage(text="page one", file_id=new_id("file")))
    assert await stored(archival) == [
        *[Continuity.SEPARATE] * 4,
        *[Continuity.CONTINUOUS] * 2,
        Continuity.DOCUMENT,
    ]
    with pytest.raises(InvalidArgument, match="continuity"):
        await archival.insert(archive, "an oak", continuity=7)
    assert len(await stored(archival)) == 7


async def test_unrelated_facts_are_no_hits(archival: ArchivalServer) -> None:
    archive = await archival.archive(embedder="mnemesh/wordllama-256")
    for text in ("Our alpaca had twins.", "The harbour froze over.", "Trains run every hour.", "Sugar is cheaper."):
        await archival.insert(archive, text)
    for mode in (PASSAGE_SEARCH_MODE_TEXT, PASSAGE_SEARCH_MODE_HYBRID):
        assert await archival.texts("alpaca", mode=mode) == ["Our alpaca had twins."]
        assert await archival.texts("xylophone", mode=mode) == []


@pytest.mark.parametrize("continuity", sampled([PASSAGE_CONTINUITY_CONTINUOUS, PASSAGE_CONTINUITY_SEPARATE], 2))
async def test_query_that_equals_a_text_finds_it_first(archival: ArchivalServer, continuity: int) -> None:
    chance = random.Random(3)
    words = [
        "red",
        "blue",
        "green",
        "tall",
        "small",
        "round",
        "old",
        "new",
        "soft",
        "loud",
        "boat",
        "lamp",
        "chair",
        "stone",
        "bird",
    ]
    texts = list(dict.fromkeys(" ".join(chance.choices(words, k=4)) for _ in range(300)))
    archives = [await archival.archive() for _ in range(2)]
    for number, archive in enumerate(archives):
        await archival.insert(archive, *texts[number::2], continuity=continuity)
    for text in chance.sample(texts, 25):
        for mode in (PASSAGE_SEARCH_MODE_TEXT, PASSAGE_SEARCH_MODE_HYBRID):
            assert (await archival.texts(text.upper() + "!", mode=mode, limit=1)) == [text]


async def test_several_queries_and_surrounding_passages(archival: ArchivalServer) -> None:
    archive = await archival.archive()
    file = new_id("file")
    await archival.insert(archive, *(Passage(text=f"page {word}", file_id=file) for word in ("one", "two", "three")))
    await archival.insert(archive, "a fact on oaks")
    found = await archival.passages.SearchPassages(
        SearchPassagesRequest(
            query="page two",
            further_queries=[" ", "oaks"],
            passages_before=2,
            passages_after=1,
            limit=2,
            filter=PassageFilter(archive_id=archive),
        )
    )
    around = {
        hit.passage.text: ([each.text for each in hit.before], [each.text for each in hit.after]) for hit in found.hits
    }
    assert around == {"page two": (["page one"], ["page three"]), "a fact on oaks": ([], [])}
    assert found.hits[0].text_score > 0
    for bad in ({"passages_before": 11}, {"passages_after": -1}, {"further_queries": ["x"] * 10}):
        with pytest.raises(InvalidArgument, match=next(iter(bad))):
            await archival.passages.SearchPassages(SearchPassagesRequest(query="x", **bad))  # type: ignore[arg-type]
