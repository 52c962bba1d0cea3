"""The pure parts of the episodic mode: the snapshot, the parsing of answers, and the cuts between turns."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mnemesh_orchestrator.compaction.episodic import join_notes, merge_commits, snapshot, split_notes, with_commits
from mnemesh_orchestrator.compaction.extraction import (
    Material,
    answer_problem,
    facts_problem,
    parse_changes,
    parse_commits,
)
from mnemesh_orchestrator.compaction.planner import Sizes, plan_whole_turns
from mnemesh_orchestrator.model.episodes import (
    Change,
    Episode,
    EpisodeCommit,
    Fact,
    FactChange,
    MemoryBundle,
    MemoryScope,
    NewEpisode,
)
from mnemesh_orchestrator.prompt.assembly import heartbeat
from mnemesh_testkit.plugin import sampled
from mnemesh_types.messages import Message, Role, TextPart, ToolCall, ToolReturn, ToolStatus

NOW = datetime(2026, 5, 1, 9, 30, tzinfo=UTC)
SCOPE = MemoryScope("agent-1")


def fact(number: int, text: str, salience: float = 0.5, days: int = 0) -> Fact:
    return Fact(f"fact-{number}", text, NOW + timedelta(days=days), ("tag",), salience, NOW)


def episode(number: int, summary: str) -> Episode:
    return Episode(f"episode-{number}", summary, NOW + timedelta(hours=number))


BUNDLE = MemoryBundle(
    (episode(1, "Ada chose a\nboat."), episode(2, "They sailed."), episode(3, "It rained.")),
    (
        fact(4, "The boat is  red.", 0.5),
        fact(3, "Ada owns it.", 0.5),
        fact(2, "It has two masts.", 0.5, days=1),
        fact(1, "Ada cannot swim.", 0.9),
    ),
)
GOLDEN = """\
[MEMORY:EPISODIC]
1) They sailed.
2) It rained.
3) They painted.

[MEMORY:SEMANTIC]
- Ada cannot swim.
- The boat is blue.
- It has two masts.
- Ada owns it.

[RECENT TURNS]
The last 4 follow as messages."""
PAINTED = EpisodeCommit(
    SCOPE,
    "conv-1",
    NewEpisode("They painted.", ("message-1",)),
    (FactChange(Change.SUPERSEDE, "The boat is blue.", ("message-1",), NOW, salience=0.5, fact_id="fact-4"),),
)


def always(text: str) -> bool:
    return True


def test_snapshot_equals_the_expected_text() -> None:
    assert snapshot(with_commits(BUNDLE, [PAINTED]), 4, always) == GOLDEN


def test_snapshot_does_not_depend_on_order_of_facts() -> None:
    other = replace(BUNDLE, facts=tuple(reversed(BUNDLE.facts)))
    assert snapshot(with_commits(other, [PAINTED]), 4, always) == GOLDEN


def test_snapshot_has_at_most_three_episodes_and_twenty_facts() -> None:
    bundle = MemoryBundle(
        tuple(episode(n, f"Episode {n}.") for n in range(9)), tuple(fact(n, f"Fact {n}.", n / 100) for n in range(90))
    )
    text = snapshot(bundle, 0, always)
    assert [line for line in text.splitlines() if ")" in line] == ["1) Episode 6.", "2) Episode 7.", "3) Episode 8."]
    assert [line for line in text.splitlines() if line.startswith("- ")] == [f"- Fact {n}." for n in range(89, 69, -1)]
    assert "[RECENT TURNS]" not in text


@pytest.mark.parametrize("limit", [10_000, 150, 100, 60, 30, 19])
def test_snapshot_drops_oldest_episodes_then_least_salient_facts(limit: int) -> None:
    text = snapshot(BUNDLE, 0, lambda text: len(text) <= limit)
    assert len(text) <= max(limit, len("[MEMORY:EPISODIC]\n1) …")), text
    if limit >= 150:
        assert "It rained." in text
        assert "Ada cannot swim." in text
    assert text.startswith("[MEMORY:EPISODIC]\n1) ")


def test_known_facts_are_not_repeated() -> None:
    again = FactChange(Change.ADD, "ada  OWNS it.", ("message-1",), NOW, salience=1.0)
    confirmed = FactChange(Change.CONFIRM, "The boat is red.", ("message-1",), NOW, fact_id="fact-4")
    later = with_commits(BUNDLE, [replace(PAINTED, changes=(again, confirmed))])
    assert sorted(f.id for f in later.facts) == ["fact-1", "fact-2", "fact-3", "fact-4"]


def said(number: int, role: Role = Role.USER, text: str = "Words.") -> Message:
    return Message(f"message-{number}", role, NOW + timedelta(minutes=number), (TextPart(text),))


MATERIAL = Material(
    SCOPE,
    "conv-1",
    [said(1), said(2, Role.ASSISTANT), said(3), said(4, Role.ASSISTANT)],
    BUNDLE.facts,
    {"message-1": "turn_0001", "message-2": "turn_0001", "message-3": "turn_0002"},
)
EPISODE: dict[str, Any] = {
    "summary": "They spoke.",
    "tags": ["a", "a", " "],
    "salience": 7,
    "first_message": "m1",
    "last_message": "m3",
}
FACT: dict[str, Any] = {
    "text": "The boat is\nblue.",
    "tags": [],
    "confidence": -1,
    "salience": 0.4,
    "messages": ["m3", "m1"],
    "relation": "new",
    "known_fact": None,
}


def answer(facts: list[Any] | None = None, **changed: Any) -> str:
    return json.dumps({"episodes": [{**EPISODE, **changed}], "facts": [FACT] if facts is None else facts})


def test_labels_become_messages_turns_and_times() -> None:
    assert answer_problem(answer(), MATERIAL) is None
    (commit,) = parse_commits(answer(), MATERIAL, "scripted/one")
    assert commit == EpisodeCommit(
        SCOPE,
        "conv-1",
        NewEpisode("They spoke.", ("message-1", "message-2", "message-3"), ("turn_0001", "turn_0002"), ("a",), 1.0),
        (
            FactChange(
                Change.ADD,
                "The boat is blue.",
                ("message-1", "message-3"),
                NOW + timedelta(minutes=1),
                salience=0.4,
            ),
        ),
        "scripted/one",
    )


def test_contradiction_is_valid_from_its_message() -> None:
    found = parse_commits(answer([{**FACT, "relation": "contradicts", "known_fact": "f1"}]), MATERIAL, "m")[0].changes
    assert [(c.change, c.fact_id, c.told_at) for c in found] == [
        (Change.SUPERSEDE, "fact-4", NOW + timedelta(minutes=3))
    ]
    later = [replace(MATERIAL.facts[0], valid_from=NOW + timedelta(days=1))]
    found = parse_commits(
        answer([{**FACT, "relation": "contradicts", "known_fact": "f1"}]), replace(MATERIAL, facts=later), "m"
    )[0].changes
    assert found[0].told_at > NOW + timedelta(days=1), "no fact ends before it starts"


def test_retraction_closes_the_fact_without_a_successor() -> None:
    retracted = {**FACT, "text": "Forget the boat.", "relation": "retracts", "known_fact": "f1"}
    (change,) = parse_commits(answer([retracted]), MATERIAL, "m")[0].changes
    assert (change.change, change.fact_id, change.text) == (Change.RETRACT, "fact-4", "The boat is  red.")
    later = with_commits(BUNDLE, [replace(PAINTED, changes=(change,))])
    assert sorted(f.id for f in later.facts) == ["fact-1", "fact-2", "fact-3"]
    # A fact of an earlier part that is not stored yet ends.
    pending = replace(change, fact_id="new-0000-0000")
    (first, second) = merge_commits([PAINTED], [replace(PAINTED, changes=(pending,))])
    assert (first.changes[0].ended_at, second.changes) == (change.told_at, ())
    assert PAINTED.without("fact-4").changes[0].change is Change.ADD
    assert replace(PAINTED, changes=(change,)).without("fact-4").changes == ()


@pytest.mark.parametrize("notes", ["", "They spoke.\n\n[RECENT TURNS]\nof old."])
@pytest.mark.parametrize("turns", [0, 4])
def test_notes_below_a_snapshot_are_parsed(notes: str, turns: int) -> None:
    text = snapshot(BUNDLE, turns, always, notes)
    memory, found = split_notes(text)
    assert found == notes
    assert memory.startswith("[MEMORY:EPISODIC]")
    assert split_notes("Plain notes.") == ("", "Plain notes.")
    assert split_notes(join_notes(memory, "More.")) == (memory, "More.")


BAD_FACTS: dict[str, tuple[dict[str, Any], str]] = {
    "no such message": ({"messages": ["m3", "m9"]}, "m9"),
    "no message": ({"messages": []}, "messages"),
    "blank": ({"text": " "}, "text"),
    "endless": ({"text": "x" * 2_000}, "text"),
    "no such fact": ({"relation": "contradicts", "known_fact": "f9"}, "f9"),
    "fact left out": ({"relation": "confirms"}, "known_fact"),
    "no such relation": ({"relation": "likes"}, "relation"),
}


@pytest.mark.parametrize("case", BAD_FACTS)
def test_answer_is_validated(case: str) -> None:
    changed, named = BAD_FACTS[case]
    text = answer([{**FACT, **changed}, {**FACT, "text": "The rest stands."}])
    problem = answer_problem(text, MATERIAL)
    assert problem is not None
    assert named in problem
    (commit,) = parse_commits(text, MATERIAL, "m")
    assert "The rest stands." in [change.text for change in commit.changes]
    known = {message.id for message in MATERIAL.messages}
    assert all(change.message_ids and set(change.message_ids) <= known for change in commit.changes)
    assert all(change.fact_id is None for change in commit.changes)


@pytest.mark.parametrize(
    "corrupted",
    [
        "```json\n{}\n```",
        "Here it is: {}",
        "{}\nI hope that helps!",
        "{},",
        "From the messages {user: m1} and [m2] I extract this: {}",
        'The form {"text": "…"} gives: {}. Done {m1}.',
        "```\n{m1}\n```\nand\n```json\n{}\n```",
        '{"result": {}}',
    ],
)
def test_wrapped_json_is_read_without_asking_again(corrupted: str) -> None:
    text = corrupted.replace("{}", answer())
    assert answer_problem(text, MATERIAL) is None
    assert parse_commits(text, MATERIAL, "m") == parse_commits(answer(), MATERIAL, "m")


DAMAGED = {
    "trailing commas": '{"facts": [{"text": "The boat is blue.", "messages": ["m1",], "tags": [],},],}',
    "single quotes": "{'facts': [{'text': 'The boat is blue.', 'messages': ['m1'], 'known_fact': None}]}",
    "comments": '{"facts": [ // the facts\n{"text": "The boat is blue." /* sure */, "messages": ["m1"]}]}',
    "invalid escape": '{"facts": [{"text": "The boat is blue.", "tags": ["a\\d"], "messages": ["m1"]}]}',
    "names without quotes": '{facts: [{text: "The boat is blue.", messages: ["m1"]}]}',
    "missing comma": '{"facts": [{"text": "The boat is blue."\n"messages": ["m1"]}]}',
    "in a block": "Sure:\n```json\n{'facts': [{'text': 'The boat is blue.', 'messages': ['m1'],}]}\n```",
    "behind braces": "Of {user: m1}: {'facts': [{'text': 'The boat is blue.', 'messages': ['m1']}]}",
    "cut off": '{"facts": [{"text": "The boat is blue.", "messages": ["m1"]}, {"text": "The car is gr',
    "bare list": '[{"text": "The boat is blue.", "messages": ["m1"]}]',
    "bare list in a text": 'The facts: [{"text": "The boat is blue.", "messages": ["m1"],}].',
    "one fact": '{"text": "The boat is blue.", "messages": ["m1"]}',
    "one fact in place of a list": '{"facts": {"text": "The boat is blue.", "messages": "m1"}}',
    "one of two": '{"facts": [7, {"text": 3}, {"text": "The boat is blue.", "messages": ["m1"]}]}',
    "null": '{"facts": [{"text": "The boat is blue.", "messages": ["m1"], "tags": null, "confidence": null}]}',
    "labels": '{"facts": [{"text": "The boat is blue.", "messages": "[m1], M2", "known_fact": "none"}]}',
    "label as a number": '{"facts": [{"text": "The boat is blue.", "messages": [1]}]}',
    "many": '{"facts": ['
    + ", ".join(f"{{'text': 'The boat is blue.', 'messages': ['m1'], 'tags': ['{n:0100}']}}" for n in range(40))
    + ",]}",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_facts_of_a_damaged_answer_are_read_without_asking_again(text: str) -> None:
    assert facts_problem(text, MATERIAL) is None
    changes = parse_changes(text, MATERIAL)
    assert changes is not None
    assert [change.text for change in changes] == ["The boat is blue."]
    assert changes[0].message_ids[0] == "message-1"


@pytest.mark.parametrize(
    "text", ["{}\n{}", "I found:\n- {}\n- {}\nThat is all {x}.", '{"facts": [{}, {}, {"text": "A bo']
)
def test_every_fact_of_an_answer_without_one_whole_document_is_read(text: str) -> None:
    for item in ({"text": "One.", "messages": ["m1"]}, {"text": "Two.", "messages": ["m2"]}):
        text = text.replace("{}", json.dumps(item), 1)
    assert facts_problem(text, MATERIAL) is None
    assert [change.text for change in parse_changes(text, MATERIAL) or ()] == ["One.", "Two."]


@pytest.mark.parametrize(
    ("given", "share"), [("0.9", 0.9), ("90%", 0.9), ("high", 0.9), (None, 0.5), (True, 0.5), ("?", 0.5), (7, 1.0)]
)
def test_shares_are_numbers_texts_or_words(given: object, share: float) -> None:
    found = parse_changes(answer([{**FACT, "confidence": given, "tags": "a, b"}]), MATERIAL)
    assert found is not None
    assert (found[0].confidence, found[0].tags) == (share, ("a", "b"))


@pytest.mark.parametrize("text", ['{"facts": []}', "[]", '{"facts": null}', '```json\n{"facts": []}\n```'])
def test_no_facts_are_not_an_unreadable_answer(text: str) -> None:
    assert parse_changes(text, MATERIAL) == ()
    assert facts_problem(text, MATERIAL) is None


@pytest.mark.parametrize(
    "text", ["", "There are no facts.", "{}", '{"facts": 1}', '{"facts": ["a", 2]}', '{"facts": [{"text": "cut', "{m1}"]
)
def test_unreadable_answer_is_not_an_answer_without_facts(text: str) -> None:
    assert parse_changes(text, MATERIAL) is None
    assert facts_problem(text, MATERIAL) is not None


def test_facts_without_labels_belong_to_the_messages_of_the_user() -> None:
    found = parse_changes(answer([{**FACT, "messages": None}]), MATERIAL)
    assert found is not None
    assert found[0].message_ids == ("message-1", "message-3")


def test_complete_part_of_truncated_answer_is_used() -> None:
    whole = answer([FACT, {**FACT, "text": "Second."}])
    (commit,) = parse_commits(whole[: whole.index("Second")], MATERIAL, "m")
    assert [change.text for change in commit.changes] == ["The boat is blue."]


@pytest.mark.parametrize(
    "text",
    sampled(["[" * 100_000, '{"a":' * 100_000, '{"episodes": [' + '"a" b "' * 100_000, '{"a": [],' * 100_000], 2),
)
def test_large_malformed_answers_are_rejected_quickly(text: str) -> None:
    assert answer_problem(text, MATERIAL) is not None
    assert parse_commits(text, MATERIAL, "m") == ()


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-1e999", "1" * 5_000, '"\\ud800"', '"\\u0000"', "true", "{}", "null"]
)
@pytest.mark.parametrize("place", ["salience", "summary", "text", "tag", "label", "known"])
def test_unusual_values_are_normalized_or_left_out(value: str, place: str) -> None:
    value = f'"a {value[1:]}' if value.startswith('"') else value
    marks = {
        "salience": answer(salience="MARK"),
        "summary": answer(summary="MARK"),
        "text": answer([{**FACT, "text": "MARK"}]),
        "tag": answer(tags=["MARK"]),
        "label": answer([{**FACT, "messages": ["MARK"]}]),
        "known": answer([{**FACT, "relation": "contradicts", "known_fact": "MARK"}]),
    }
    text = marks[place].replace('"MARK"', value)
    answer_problem(text, MATERIAL)
    for commit in parse_commits(text, MATERIAL, "m"):
        for words in (commit.episode.summary, *commit.episode.tags, *(change.text for change in commit.changes)):
            assert "\0" not in words.encode("utf-8").decode()
        assert 0 <= commit.episode.salience <= 1


@pytest.mark.parametrize("text", ["", "no", "[]", "{}", '{"episodes": 3}', '{"episodes": [{}]}', '{"facts": []}'])
def test_answer_without_episode_has_no_commits(text: str) -> None:
    assert answer_problem(text, MATERIAL) is not None
    assert parse_commits(text, MATERIAL, "m") == ()


def test_fact_is_superseded_once() -> None:
    other = {**FACT, "relation": "contradicts", "known_fact": "f1"}
    found = parse_commits(answer([other, {**other, "text": "The boat is green."}]), MATERIAL, "m")
    assert [change.text for change in found[0].changes] == ["The boat is blue."]


def test_shortened_material_keeps_whole_lines_with_labels() -> None:
    messages = [said(n, text=f"{n}: {'words ' * 100}") for n in range(200)]
    shown = replace(MATERIAL, messages=messages).render(5_000, "They met.")
    assert len(shown) < 6_000
    assert shown.startswith("Known facts:\n[f1] The boat is red.\n")
    assert "Earlier notes:\nThey met.\n" in shown
    assert "[m1 2026-05-01 09:30] user: 0: words" in shown
    assert "[m200 " in shown
    assert "messages are left out here" in shown


def sizes(count: int, each: int, trigger: int) -> Sizes:
    return Sizes([each] * count, [each] * count, 0, 0, trigger, trigger)


def talk(count: int) -> list[Message]:
    """Returns this number of turns of four messages: question, call, its return with a heartbeat after it, answer."""
    window = [said(0, Role.SYSTEM)]
    for turn in range(count):
        call = ToolCall(f"call-{turn}", "look", "{}")
        at = NOW + timedelta(hours=turn)
        window += [
            Message(f"message-u{turn}", Role.USER, at, (TextPart("Look."),)),
            Message(f"message-c{turn}", Role.ASSISTANT, at, tool_calls=(call,)),
            Message(
                f"message-r{turn}",
                Role.TOOL,
                at,
                tool_returns=(ToolReturn.from_text(call.id, "look", ToolStatus.SUCCESS, "ok"),),
            ),
            Message(f"message-h{turn}", Role.USER, at, (TextPart(heartbeat("go on", at, "UTC")),), is_event=True),
            Message(f"message-a{turn}", Role.ASSISTANT, at, (TextPart("Fine."),)),
        ]
    return window


@pytest.mark.parametrize(("each", "kept"), [(1, 4), (20, 4), (21, 3), (26, 2), (34, 1), (50, 0), (100, 0)])
def test_complete_turns_are_evicted_and_four_are_kept_if_they_fit(each: int, kept: int) -> None:
    window = talk(9)
    start = 1 + 8 * 5
    plan = plan_whole_turns(window, start, sizes(len(window), each, 600), 0.3)
    assert plan is not None
    assert plan.end == 1 + (8 - kept) * 5
    assert plan.kept[0].text == "Look."


def test_four_turns_or_fewer_are_kept() -> None:
    window = talk(5)
    assert plan_whole_turns(window, 1 + 4 * 5, sizes(len(window), 1, 600), 0.3) is None
    folded = [window[0], said(1, Role.SUMMARY, "[MEMORY:EPISODIC]"), *window[1:]]
    assert plan_whole_turns(folded, 2 + 4 * 5, sizes(len(folded), 1, 600), 0.3) is None
