"""The rules solver: each rule alone, and all of them compared with a reference implementation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mnemesh_kit.errors import InvalidArgument
from mnemesh_orchestrator.loop.rules import OutputUnmapped, Prefilled, RulesSolver
from mnemesh_orchestrator.model.rules import (
    ChildArguments,
    Conditional,
    ConditionalOutcome,
    ConstrainChildTools,
    ContinueLoop,
    ExitLoop,
    MaxCountPerStep,
    ParentLastTool,
    RequiredBeforeExit,
    RequiresApproval,
    RunFirst,
    ToolRule,
    valid_rules,
)

ALL = ("a", "b", "c", "d")


def solver(*rules: ToolRule) -> RulesSolver:
    return RulesSolver(rules)


def test_without_rules_every_tool_is_allowed_and_none_forced() -> None:
    free = solver()
    assert free.allowed(ALL) == ALL
    assert not free.must_call()
    assert free.permits_parallel_calls
    assert free.prompt() == ""


def test_a_rule_without_a_schema_requires_approval_of_every_call() -> None:
    schema = '{"type": "object"}'
    assert solver(RequiresApproval("a", schema), RequiresApproval("b")).approval_schemas("a") == (schema,)
    both = solver(RequiresApproval("a", schema), RequiresApproval("a"))
    assert (both.needs_approval("a"), both.approval_schemas("a")) == (True, ())


def test_run_first_applies_to_the_first_call_only() -> None:
    first = solver(RunFirst("b", '{"x": 1}'), ConstrainChildTools("b", ("c",)))
    assert first.allowed(ALL) == ("b",)
    assert first.must_call()
    assert first.prefilled("b") == {"x": Prefilled(1, "InitToolRule(b)")}
    later = first.after("b", "").after("c", "")
    assert later.allowed(ALL) == ALL
    assert not later.must_call()
    assert later.prefilled("b") == {}


def test_run_first_rule_of_a_missing_tool_is_ignored() -> None:
    assert solver(RunFirst("z"), RunFirst("c")).allowed(ALL) == ("c",)
    assert solver(RunFirst("z")).allowed(ALL) == ALL


def test_after_a_parent_only_its_children_with_their_arguments() -> None:
    rule = ConstrainChildTools("a", ("b", "c"), (ChildArguments("c", '{"n": 2}'),))
    after = solver(rule).after("a", "")
    assert after.allowed(ALL) == ("b", "c")
    assert after.must_call()
    assert after.prefilled("c") == {"n": Prefilled(2, "ChildToolRule(a->c)")}
    assert after.prefilled("b") == {}
    assert after.after("b", "").allowed(ALL) == ALL
    assert after.has_children("a")
    assert not after.has_children("b")


def test_children_are_hidden_unless_their_parent_was_last() -> None:
    rules = solver(ParentLastTool("a", ("b", "c")))
    assert rules.allowed(ALL) == ("a", "d")
    assert rules.after("a", "").allowed(ALL) == ("b", "c")
    assert rules.after("a", "").must_call()
    assert rules.after("a", "").after("b", "").allowed(ALL) == ("a", "d")


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_limit_permits_exactly_that_many_calls(limit: int) -> None:
    current = solver(MaxCountPerStep("a", limit))
    for _ in range(limit):
        assert "a" in current.allowed(ALL)
        current = current.after("a", "")
    assert current.allowed(ALL) == ("b", "c", "d")
    assert not current.has_children("a")


@pytest.mark.parametrize(
    ("returned", "next_tool"),
    [
        ("true", "b"),
        ("True", "b"),
        ("5", "c"),
        (" 5\n", "c"),
        ("1.5", "d"),
        ("x", "e"),
        ("1", "f"),
        ("X", "f"),
        ("", "f"),
        ("5.0", "f"),
        ('{"message": "x"}', "f"),
    ],
)
def test_conditional_outcomes_match_by_type(returned: str, next_tool: str) -> None:
    outcomes = ((True, "b"), (5, "c"), (1.5, "d"), ("x", "e"))
    rule = Conditional("a", tuple(ConditionalOutcome(output, child) for output, child in outcomes), default_child="f")
    tools = ("a", "b", "c", "d", "e", "f")
    after = solver(rule).after("a", returned)
    assert after.allowed(tools) == (next_tool,)
    assert after.must_call()
    assert after.after(next_tool, "").allowed(tools) == tools


def test_unmapped_return_leaves_all_tools_or_is_an_error() -> None:
    outcomes = (ConditionalOutcome("yes", "b"),)
    assert solver(Conditional("a", outcomes)).after("a", "no").allowed(ALL) == ALL
    strict = solver(Conditional("a", outcomes, default_child="c", require_output_mapping=True)).after("a", "no")
    with pytest.raises(OutputUnmapped, match="a returned 'no'"):
        strict.allowed(ALL)


def test_contradicting_rules_allow_every_tool() -> None:
    contradiction = solver(ConstrainChildTools("a", ("b",)), ConstrainChildTools("a", ("c",))).after("a", "")
    assert contradiction.allowed(ALL) == ALL
    assert solver(ConstrainChildTools("a", ("unattached",))).after("a", "").allowed(ALL) == ALL


def test_terminal_continue_required_and_approval_rules() -> None:
    rules = solver(ExitLoop("a"), ContinueLoop("b"), RequiredBeforeExit("c"), RequiredBeforeExit("z"))
    assert rules.is_terminal("a")
    assert not rules.is_terminal("b")
    assert rules.continues("b")
    assert rules.uncalled_required(ALL) == ("c",)
    assert rules.after("c", "").uncalled_required(ALL) == ()
    assert not rules.permits_parallel_calls
    approval = solver(RequiresApproval("d"))
    assert approval.needs_approval("d")
    assert not approval.needs_approval("a")
    assert approval.permits_parallel_calls


def test_solver_is_immutable() -> None:
    before = solver(MaxCountPerStep("a", 1))
    after = before.after("a", "r")
    assert before.history == ()
    assert after == RulesSolver(before.rules, ("a",), "r")


def test_violation_names_the_allowed_tools_and_the_violated_rules() -> None:
    rules = solver(ConstrainChildTools("a", ("b",)), MaxCountPerStep("c", 1), ExitLoop("c")).after("c", "")
    rules = rules.after("a", "")
    assert rules.violation_text("c", rules.allowed(ALL)) == (
        "[ToolConstraintError] Cannot call c, valid tools include: ['b'].\n"
        "** Hint: Possible rules that were violated:\n"
        "\t- After using a, you must use one of these tools: b\n"
        "\t- c: at most 1 use(s) per response"
    )
    first = solver(RunFirst("a"), ParentLastTool("a", ("b",)))
    assert first.violation_text("b", ["a"]).endswith("violated:\n\t- a must be called first")
    assert solver().violation_text("x", ["a", "b"]).endswith("include: ['a', 'b'].")


def test_equal_outcomes_of_different_types_are_distinct() -> None:
    outcomes = tuple(ConditionalOutcome(output, "b") for output in (True, 1, 1.0))
    assert len(set(outcomes)) == 3
    assert valid_rules([Conditional("a", outcomes)])


def test_equal_rules_are_kept_once() -> None:
    assert valid_rules([ExitLoop("a"), ContinueLoop("a"), ExitLoop("a")]) == (ExitLoop("a"), ContinueLoop("a"))


@pytest.mark.parametrize(
    "rule",
    [
        ExitLoop(""),
        RunFirst("a", "no json"),
        RunFirst("a", "[1]"),
        ConstrainChildTools("a", ()),
        ConstrainChildTools("a", ("b",), (ChildArguments("c", "{}"),)),
        ConstrainChildTools("a", ("b",), (ChildArguments("b", "1"),)),
        ParentLastTool("a", ("",)),
        MaxCountPerStep("a", 0),
        Conditional("a"),
        Conditional("a", (ConditionalOutcome("x", ""),)),
        Conditional("a", (ConditionalOutcome("x", "b"), ConditionalOutcome("x", "c"))),
    ],
)
def test_invalid_rule_is_refused_by_its_index(rule: ToolRule) -> None:
    with pytest.raises(InvalidArgument) as refused:
        valid_rules([ExitLoop("ok"), rule])
    assert refused.value.field == "tool_rules[1]"


names = st.sampled_from([*ALL, "unattached"])
some_names = st.lists(names, min_size=1, max_size=3, unique=True).map(tuple)
rule_lists = st.lists(
    st.one_of(
        st.builds(RunFirst, names),
        st.builds(ExitLoop, names),
        st.builds(ContinueLoop, names),
        st.builds(ConstrainChildTools, names, some_names),
        st.builds(ParentLastTool, names, some_names),
        st.builds(MaxCountPerStep, names, st.integers(1, 2)),
        st.builds(
            Conditional,
            names,
            st.lists(st.builds(ConditionalOutcome, st.sampled_from(["x", "y"]), names), min_size=1, max_size=2).map(
                tuple
            ),
            st.none() | names,
        ),
    ),
    max_size=4,
)
calls = st.lists(st.tuples(names, st.sampled_from(["x", "y", "z"])), max_size=5)


def reference(rules: list[ToolRule], called: list[tuple[str, str]], available: set[str]) -> set[str]:
    """The tools that may be called next: a second implementation of the rules, with sets."""
    last, result = called[-1] if called else (None, "")
    first = {rule.tool_name for rule in rules if isinstance(rule, RunFirst)} & available
    if first and not called:
        return first
    left = set(available)
    for rule in rules:
        if isinstance(rule, ConstrainChildTools) and rule.tool_name == last:
            left &= set(rule.children)
        if isinstance(rule, ParentLastTool):
            left = left & set(rule.children) if rule.tool_name == last else left - set(rule.children)
        if isinstance(rule, MaxCountPerStep) and [name for name, _ in called].count(rule.tool_name) >= rule.max_count:
            left -= {rule.tool_name}
        if isinstance(rule, Conditional) and rule.tool_name == last:
            matching = [outcome.child for outcome in rule.outcomes if outcome.output == result]
            chosen = matching[0] if matching else rule.default_child
            left &= {chosen} if chosen is not None else left
    return left or available


@given(rule_lists, calls)
def test_allowed_tools_are_those_of_the_reference(rules: list[ToolRule], called: list[tuple[str, str]]) -> None:
    current = RulesSolver(tuple(rules))
    for name, result in called:
        current = current.after(name, result)
    allowed = current.allowed(ALL)
    assert set(allowed) == reference(rules, called, set(ALL))
    assert list(allowed) == [name for name in ALL if name in allowed]
