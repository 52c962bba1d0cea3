"""The commands for schedules and webhooks, over a whole mesh."""

import json

from .command_line import CommandLine


def test_schedules_are_created_listed_paused_and_deleted(cli: CommandLine) -> None:
    cli.agent("early")
    code, created, err = cli.run(
        *("schedules", "create", "early", "Good morning", "--cron", "0 9 * * *", "--time-zone", "Europe/Rome"),
        *("--name", "morning", "--queue", "--max-runs", "3"),
    )
    assert (code, err) == (0, "")
    schedule_id = created.strip()
    _, listed, _ = cli.run("schedules", "list", "--agent", "early")
    assert [line.split()[:3] for line in listed.splitlines()[1:]] == [[schedule_id, "morning", "0"]]
    assert listed.splitlines()[1].split()[-1] == "active"
    assert cli.run("schedules", "pause", schedule_id) == (0, f"paused {schedule_id}\n", "")
    assert cli.run("schedules", "list", "--agent", "early")[1].splitlines()[1].split()[-1] == "paused"
    assert cli.run("schedules", "resume", schedule_id) == (0, f"resumed {schedule_id}\n", "")
    shown = json.loads(cli.run("--json", "schedules", "show", schedule_id)[1])
    assert (shown["cron"], shown["time_zone"], shown["max_runs"]) == ("0 9 * * *", "Europe/Rome", 3)
    for arguments in (["--cron", "0 9 * * *", "--at", "2030-01-01"], [], ["--at", "soon"]):
        assert cli.run("schedules", "create", "early", "Hi", *arguments)[0] == 2
    code, _, err = cli.run("schedules", "create", "early", "Hi", "--cron", "often")
    assert (code, "cron" in err) == (1, True)
    assert cli.run("schedules", "delete", schedule_id, "--yes") == (0, f"deleted {schedule_id}\n", "")


def test_webhooks_are_created_tested_disabled_and_deleted(cli: CommandLine) -> None:
    agent = cli.agent("loud")
    code, secret, said = cli.run("webhooks", "create", "http://127.0.0.1:1/", "--event", "run.failed", "-a", "loud")
    assert (code, secret[:6]) == (0, "whsec_")
    webhook_id = next(word.rstrip(".") for word in said.split() if word.startswith("webhook-"))
    shown = cli.run("--json", "webhooks", "show", webhook_id)[1]
    assert json.loads(shown)["agent_ids"] == [agent.id]
    assert secret.strip() not in shown
    code, delivery, _ = cli.run("webhooks", "test", webhook_id)
    assert code == 0
    rows = cli.run("webhooks", "deliveries", webhook_id)[1].splitlines()[1:]
    assert [row.split()[:2] for row in rows] == [[delivery.strip(), "webhook.test"]]
    assert cli.run("webhooks", "disable", webhook_id) == (0, f"disabled {webhook_id}\n", "")
    assert "disabled" in cli.run("webhooks", "list")[1]
    assert cli.run("webhooks", "enable", webhook_id) == (0, f"enabled {webhook_id}\n", "")
    assert cli.run("webhooks", "create", "http://127.0.0.1:1/", "--event", "run.exploded")[0] == 2
    assert cli.run("webhooks", "delete", webhook_id, "--yes") == (0, f"deleted {webhook_id}\n", "")
