"""`mnemesh budgets`: limits of several periods, what was used, and a message that is refused."""

from .command_line import CommandLine


def test_budget_is_set_shown_met_and_deleted(cli: CommandLine) -> None:
    agent = cli.agent("thrifty")
    code, _, error = cli.run("budgets", "set", "--agent", "thrifty")
    assert code != 0
    assert "at least one limit" in error
    assert cli.run("budgets", "set", "--agent", "thrifty", "--per", "month", "--cost", "2.5")[0] == 0
    assert cli.run("budgets", "set", "--agent", "thrifty", "--requests", "1", "--concurrent-runs", "3")[0] == 0
    assert cli.run("messages", "send", "thrifty", "Hello")[0] == 0
    code, shown, _ = cli.run("budgets", "list", "--agent", "thrifty")
    rows = [line.split() for line in shown.splitlines()]
    assert code == 0
    assert [row[:2] for row in rows[1:]] == [["thrifty", "month"], ["thrifty", "day"]]
    assert "of $2.50" in shown
    assert "1 of 1" in shown
    code, _, error = cli.run("messages", "send", "thrifty", "Again")
    assert code != 0
    assert "BUDGET_EXCEEDED" in error
    assert "The next day begins at" in error
    budget_id = rows[1][-1]
    assert cli.run("budgets", "delete", budget_id, "--yes")[0] == 0
    assert cli.run("messages", "send", "thrifty", "Again")[0] == 0
    assert agent.id not in cli.run("--json", "budgets", "list")[1]
