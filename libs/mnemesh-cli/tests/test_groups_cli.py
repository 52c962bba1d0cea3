"""The commands for groups and sleeptime, over a whole mesh."""

import asyncio

import pytest
from mnemesh.agents.v1 import agents_pb2

from .command_line import CommandLine
from .terminal import PROMPT, Terminal


def test_groups_are_created_listed_shown_updated_and_deleted(cli: CommandLine) -> None:
    boss, ada, bob = cli.agent("boss"), cli.agent("ada-1"), cli.agent("bob-1")

    code, created, err = cli.run(
        *("groups", "create", "ada-1", bob.id, "--type", "dynamic", "--manager", "boss"),
        *("--max-turns", "3", "-d", "picnic"),
    )
    assert (code, err) == (0, "")
    group_id = created.strip()
    assert cli.group(group_id).agent_ids == [ada.id, bob.id]

    _, listed, _ = cli.run("groups", "list", "--agent", "ada-1")
    assert [line.split() for line in listed.splitlines()[1:]] == [
        [group_id, "picnic", "dynamic", "ada-1,", "bob-1", "boss"]
    ]
    code, shown, err = cli.run(
        *("groups", "update", "picnic", "--remove", "ada-1", "--add", cli.agent("carl-1").id),
        *("--clear", "max-turns", "--termination-token", "OVER", "-d", "lunch"),
    )
    assert (code, err) == (0, "")
    shown_again = cli.run("groups", "show", "lunch")
    assert shown_again == (0, shown, "")
    rows = [line.replace(":", "", 1) for line in shown.splitlines()]
    assert rows[1:3] == ["description lunch", "type dynamic"]
    assert f"manager boss ({boss.id})" in rows
    assert f"member bob-1 ({bob.id})" in rows
    assert "max turns one per member (default)" in rows
    assert "termination token OVER" in rows

    assert cli.run("groups", "delete", "lunch", stdin="n\n")[0] == 1
    assert cli.run("groups", "delete", "lunch", "--yes") == (0, f"deleted {group_id}\n", "")
    assert (
        cli.run("groups", "list", "--agent", "ada-1")[2]
        .removeprefix("mnemesh: ")
        .startswith("There are no groups. Create one with")
    )


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--type", "round-robin", "--max-turns", "5"], {"max turns": "5"}),
        (["--type", "supervisor", "--manager", "manager"], {}),
        (["--type", "dynamic", "--manager", "manager"], {"termination token": "DONE! (default)"}),
        (
            ["--type", "sleeptime", "--manager", "manager", "--frequency", "3", "--interval", "30m"],
            {"frequency": "3", "interval": "0:30:00", "inactivity": "none (default)", "last sleeptime": "never"},
        ),
        (
            ["--type", "voice-sleeptime", "--manager", "manager", "--max-buffer", "20", "--min-buffer", "10"],
            {"max buffer": "20", "min buffer": "10"},
        ),
        (["--type", "swarm"], {}),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_each_type_of_group_has_its_options(cli: CommandLine, arguments: list[str], options: dict[str, str]) -> None:
    is_voice = "voice-sleeptime" in arguments
    member, manager = cli.agent("member"), cli.agent("manager", type="voice_convo" if is_voice else "letta_v1")
    arguments = [manager.id if argument == "manager" else argument for argument in arguments]

    code, created, err = cli.run("groups", "create", member.id, *arguments)

    assert (code, err) == (0, "")
    shown = cli.run("groups", "show", created.strip())[1]
    rows = dict(line.split(": ", 1) for line in shown.splitlines())
    assert {label: rows[label] for label in ("type", *options)} == {"type": arguments[1], **options}


def test_bad_input_is_an_error_that_names_what_to_do(cli: CommandLine) -> None:
    ada = cli.agent("ada-2")
    group_id = cli.run("groups", "create", ada.id)[1].strip()

    for arguments, code, words in (
        (("groups", "create", ada.id, "--frequency", "2"), 2, "It is for sleeptime"),
        (("groups", "create", ada.id, "--type", "circle"), 2, "'circle' is not one of"),
        (("groups", "create", ada.id, "--type", "supervisor"), 2, "needs a manager"),
        (("groups", "create", ada.id, "--type", "sleeptime", "--manager", "x", "--interval", "soon"), 2, "30m"),
        (("groups", "create", ada.id, "--metadata", "[1]"), 2, "not a JSON object"),
        (("groups", "create", ada.id, ada.id), 1, "INVALID_ARGUMENT"),
        (("groups", "create", "nobody"), 3, "There is no agent named 'nobody'"),
        (("groups", "update", group_id), 2, "at least one change"),
        (("groups", "update", group_id, "--clear", "color"), 2, "cannot be cleared"),
        (("groups", "update", group_id, "--clear", "frequency"), 2, "It is for sleeptime"),
        (("groups", "update", group_id, "--add", ada.id), 2, "is a member of the group already"),
        (("groups", "update", group_id, "--remove", cli.agent("eva").id), 2, "is not a member"),
        (("groups", "show", "none"), 3, "There is no group with the description 'none'"),
        (("groups", "send", "none", "hello"), 3, "There is no group"),
        (("chat", "--group", "none"), 3, "There is no group"),
        (("chat", "--group", group_id, "--agent", ada.id), 2, "only one of"),
    ):
        result = cli.run(*arguments)
        assert (result[0], result[1]) == (code, ""), (arguments, result)
        assert words in " ".join(result[2].replace("│", "").split()), (arguments, result)
        if code in (1, 3):
            assert len(result[2].splitlines()) == 1, result


def test_group_answers_with_the_names_of_the_speakers(cli: CommandLine) -> None:
    ada, bob = cli.agent("ada-3", blocks={"human": ""}), cli.agent("bob-3", blocks={"human": ""})
    group_id = cli.run("groups", "create", ada.id, bob.id, "-d", "round")[1].strip()

    code, out, err = cli.run("groups", "send", "round", "My name is Grace.")

    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if "[mnemesh/rehearsal" not in line] == [
        "I wrote your name, Grace, into core memory (block human, by memory_insert).",
        "I wrote your name, Grace, into core memory (block human, by memory_insert).",
        "Hello, ada-3! I have read 1 message from ada-3.",
        "ada-3 said: I wrote your name, Grace, into core memory (block human, by memory_insert).",
    ]
    assert [line[:7] for line in out.splitlines() if "[mnemesh/rehearsal" in line] == ["ada-3: ", "bob-3: "]

    code, out, err = cli.run("chat", "--group", group_id, stdin="What is my name?\n\nHello, both.")
    assert (code, err) == (0, "")
    speakers = [line.split(": ")[0] for line in out.splitlines() if "[mnemesh/rehearsal" in line]
    assert speakers == ["ada-3", "bob-3", "ada-3", "bob-3"]
    assert out.count("Your name is Grace") == 3, "bob quotes ada"

    code, listed, _ = cli.run("groups", "messages", "round", "--agent", "bob-3", "--limit", "3")
    rows = [line.split()[3:5] for line in listed.splitlines()]
    assert (code, rows) == (0, [["bob-3", "user"], ["bob-3", "system"], ["bob-3", "assistant"]])

    assert cli.run("groups", "reset", "round", "--yes") == (0, f"reset {group_id}\n", "")
    assert "You said" not in cli.run("groups", "send", "round", "Hello.")[1]


def test_run_of_a_group_in_the_background_is_followed_by_its_id(cli: CommandLine) -> None:
    ada = cli.agent("ada-4", blocks={"human": ""})
    group_id = cli.run("groups", "create", ada.id)[1].strip()

    code, out, _ = cli.run("groups", "send", group_id, "My name is Grace.", "--background")

    assert code == 0
    run = cli.wait(out.strip())
    assert (run.group_id, len(run.child_run_ids)) == (group_id, 1)


def test_supervisor_reports_what_the_members_replied(cli: CommandLine) -> None:
    boss, ada, bob = (cli.agent(name, blocks={"human": ""}) for name in ("boss-5", "ada-5", "bob-5"))
    members = (ada.id, bob.id, "--manager", boss.id)

    supervised = cli.run("groups", "create", *members, "--type", "supervisor")[1].strip()
    code, out, err = cli.run("groups", "send", supervised, "My name is Grace.")
    assert (code, err) == (0, "")
    assert "send_message_to_all_agents_in_group returned: ada-5: I wrote your name, Grace" in out
    assert "\nbob-5: I wrote your name, Grace" in out
    listed = [line.split()[3:5] for line in cli.run("groups", "messages", supervised)[1].splitlines()]
    assert listed[0] == ["boss-5", "user"]
    assert listed[-1] == ["boss-5", "assistant"]
    assert listed.count(["bob-5", "assistant"]) == 2, "its edit and its reply"


def test_swarm_is_refused_with_a_reason(cli: CommandLine) -> None:
    group_id = cli.run("groups", "create", cli.agent("ada-6").id, "--type", "swarm")[1].strip()
    code, out, err = cli.run("groups", "send", group_id, "Hello.")
    assert (code, out) == (1, "")
    assert "swarm" in err.lower()


def test_failed_turn_is_reported_with_the_name_of_the_agent(cli: CommandLine) -> None:
    small = agents_pb2.ModelSettings(context_window=4_000)
    ada, bob = cli.agent("ada-7", settings=small), cli.agent("bob-7")
    group_id = cli.run("groups", "create", ada.id, bob.id)[1].strip()

    code, out, err = cli.run("groups", "send", group_id, "A long story. " * 4_000 + "What is my name?")

    assert code == 0, "the other turn completed"
    assert err.startswith("mnemesh: ada-7: ")
    assert out.startswith("bob-7: ")


async def test_approval_in_a_group_is_asked_for_with_the_name_of_the_agent(cli: CommandLine) -> None:
    ada, bob = cli.agent("ada-8"), cli.agent("bob-8")
    cli.require_approval(ada, "archival_memory_insert")
    group_id = (await asyncio.to_thread(cli.run, "groups", "create", ada.id, bob.id))[1].strip()

    terminal = Terminal(cli.environment(), "--group", group_id)
    await terminal.open()
    try:
        await terminal.see(PROMPT)
        terminal.type("Remember that it rains.\r")
        await terminal.see("ada-8 ? archival_memory_insert(content=")
        await terminal.see("run archival_memory_insert?")
        await terminal.see(PROMPT)
        terminal.type("y\r")
        await terminal.see("ada-8: ")
        await terminal.see("I stored this in archival memory: it rains.")
        await terminal.see("bob-8 ▸ archival_memory_insert(content=")
        await terminal.see("bob-8: ")
        await terminal.see(PROMPT)
        terminal.type("/quit\r")
        assert await terminal.wait() == 0
    finally:
        await terminal.close()


ASK = "send_message_to_agent_and_wait_for_reply"


def test_approval_of_an_agent_whose_reply_a_turn_waits_for_is_reported(cli: CommandLine) -> None:
    eve = cli.agent("eve-2")
    cli.require_approval(eve, "archival_memory_insert")
    ann = cli.agent("ann-2", tools=[ASK])
    told = f"mnemesh: eve-2 is waiting for an approval; run `mnemesh chat --agent {ann.id}` in a terminal\n"

    code, _, err = cli.run("chat", "--agent", "ann-2", stdin=f"Ask {eve.id}: Remember that it rains.\n")

    assert (code, err) == (1, told)


async def test_chat_asks_for_the_approval_of_an_agent_whose_reply_the_turn_waits_for(cli: CommandLine) -> None:
    eve = cli.agent("eve-1")
    cli.require_approval(eve, "archival_memory_insert")
    cli.agent("ann-1", tools=[ASK])

    terminal = Terminal(cli.environment(), "--agent", "ann-1")
    await terminal.open()
    try:
        await terminal.see(PROMPT)
        terminal.type(f"Ask {eve.id}: Remember that it rains.\r")
        await terminal.see("eve-1 ? archival_memory_insert(content=")
        await terminal.see("run archival_memory_insert?")
        await terminal.see(PROMPT)
        terminal.type("y\r")
        await terminal.see("I stored this in archival memory: it rains.")
        await terminal.see(PROMPT)
        terminal.type("/quit\r")
        assert await terminal.wait() == 0
    finally:
        await terminal.close()


async def test_chat_continues_a_run_that_waits_for_an_approval(cli: CommandLine) -> None:
    ada, bob = cli.agent("ada-9"), cli.agent("bob-9")
    cli.require_approval(ada, "archival_memory_insert")
    group_id = (await asyncio.to_thread(cli.run, "groups", "create", ada.id, bob.id))[1].strip()
    waiting = (
        1,
        "",
        f"mnemesh: ada-9 is waiting for an approval; run `mnemesh chat --group {group_id}` in a terminal\n",
    )

    assert await asyncio.to_thread(cli.run, "groups", "send", group_id, "Remember that it rains.") == waiting
    terminal = Terminal(cli.environment(), "--group", group_id)
    await terminal.open()
    try:
        await terminal.see("the group is still answering an earlier message:")
        await terminal.see("ada-9 ? archival_memory_insert(content=")
        await terminal.see(PROMPT)
        terminal.type("not now\r")
        await terminal.see("ada-9: ")
        await terminal.see("bob-9: ")
        await terminal.see(PROMPT)
    finally:
        await terminal.close()


def test_waiting_run_of_a_group_is_cancelled(cli: CommandLine) -> None:
    ada = cli.agent("ada-10")
    cli.require_approval(ada, "archival_memory_insert")
    group_id = cli.run("groups", "create", ada.id)[1].strip()
    assert cli.run("groups", "send", group_id, "Remember that it rains.")[0] == 1

    code, out, err = cli.run("groups", "cancel", group_id)

    assert (code, err) == (0, "")
    assert out.startswith("cancelled run-")
    assert "no runs" in cli.run("groups", "cancel", group_id)[2]
    code, out, _ = cli.run("groups", "send", group_id, "What is my name?")
    assert (code, "I do not know your name" in out) == (0, True), "the group stays usable"


def test_sleep_shows_what_the_partner_wrote(cli: CommandLine) -> None:
    code, created, err = cli.run("agents", "create", "eve", "--sleeptime")
    assert (code, err) == (0, "")
    shown = cli.run("agents", "show", created.strip())[1]
    assert "eve-sleeptime (agent-" in shown
    assert "sleeptime, manager" in shown
    assert cli.run("chat", "-a", created.strip(), stdin="My name is Eve. I live in Rome.\n")[::2] == (0, "")

    code, preview, err = cli.run("sleep", "eve", "--dry-run")
    assert (code, err) == (0, "")
    assert preview.startswith("transcript of 2 messages:\n")
    assert '"message": "My name is Eve. I live in Rome."' in preview
    assert "request for eve-sleeptime:\n{" in preview

    code, out, err = cli.run("sleep", "eve")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "eve-sleeptime: completed after 2 steps",
        "✎ memory [human]",
        "  + Name: Eve",
        "  + I live in Rome.",
    ]
    nothing = "mnemesh: There are no new messages: the partners have seen everything.\n"
    assert cli.run("sleep", "eve") == (0, "", nothing)
    assert cli.run("sleep", "eve", "--dry-run") == (0, "", nothing)
    assert cli.run("memory", "show", "eve")[1].startswith("[human (25/20000)]\nName: Eve\nI live in Rome.\n")


def test_partner_gets_only_the_blocks_that_are_named(cli: CommandLine) -> None:
    grace = cli.agent("grace", blocks={"human": ""})
    partner = cli.run("agents", "create", "partner-11", "--type", "sleeptime", "--persona", "Tidy.")[1].strip()
    assert cli.run("memory", "show", partner)[1] == "[persona (5/20000)]\nTidy.\n"

    code, _, err = cli.run("groups", "create", partner, "--type", "sleeptime", "--manager", grace.id)

    assert (code, err) == (0, "")
    assert cli.run("memory", "show", partner)[1].count("[") == 2
    assert cli.run("agents", "create", "x", "--type", "sleepy")[0] == 1


def test_sleep_time_is_switched_on_and_off(cli: CommandLine) -> None:
    frank = cli.agent("frank", blocks={"human": ""})
    code, out, err = cli.run("sleep", frank.id)
    assert (code, out) == (1, "")
    assert "mnemesh agents update" in err

    assert "partner" in cli.run("agents", "update", frank.id, "--sleeptime")[1]
    cli.run("chat", "-a", frank.id, stdin="I like tea.\n")
    runs = cli.run("sleep", frank.id, "--no-wait")[1].split()
    assert cli.wait(runs[0]).parent_run_id == ""
    assert "partner, switched off" in cli.run("agents", "update", frank.id, "--no-sleeptime")[1]
    assert cli.run("agents", "update", frank.id)[0] == 2
