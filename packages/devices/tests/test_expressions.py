# SPDX-License-Identifier: Apache-2.0
"""What expressions must not do: take long, take much, or be taken for something that they are not."""

import re
import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kepd_devices.cel.functions import FUNCTIONS
from kepd_devices.cel.pattern import PatternRefused, pattern
from kepd_devices.cel.program import Judgement, program
from kepd_devices.cel.tree import DEEPEST, Unreadable
from kepd_devices.cel.values import Device, Domains, EvaluationFailed

NINE = "[1,2,3,4,5,6,7,8,9]"
ROUNDS = "".join(f"{NINE}.all({name}, " for name in "abcdefg") + "true" + ")" * 7
BINDINGS = (f"cel.bind(v{n}, {f'v{n - 1} + v{n - 1}' if n else 'device.driver'}, " for n in range(40))
DOUBLED = "".join(BINDINGS) + "v39 == ''" + ")" * 40
DEVICE = Device(driver="gpu.example.com", attributes=Domains(), capacity=Domains())


def value(text: str) -> bool:
    return program(text).is_true_of(DEVICE)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "the end where a value was expected"),
        ("true || ", "the end where a value was expected"),
        ("(" * 200 + "true" + ")" * 200, f"more than {DEEPEST} expressions"),
        ("[" * 200 + "]" * 200, f"more than {DEEPEST} expressions"),
        ("!" * 300 + "device", "! is not for (device)"),
        ("true &&" * 3000 + "true", "longer than 10240 bytes"),
        ("1" + " + 1" * 200 + " > 0", f"more than {DEEPEST} expressions"),
        ("device.name == 'x'", "a device has no field name"),
        ("quantity('1') == 1", "== is not for (quantity, int)"),
        ("'x' + 1 == 'x1'", "+ is not for (string, int)"),
        ("device.driver.find('x') == 'x'", "no function is called find"),
        ("a.b", "nothing is called a"),
        ("'text", "a text without an end"),
        ("99999999999999999999 > 0", "too large a number"),
        ("while", "while where a value was expected"),
        ("[1, 'a'].size() == 2", "items of a list are of one kind, not int and string"),
        ("'\\q' == 'q'", "\\q is no escape"),
        ("has(device)", "has() takes one field"),
        ("[1].all(1, true)", "a name was expected"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_one_line(text: str, part: str) -> None:
    """DVA-26, DVA-27."""
    with pytest.raises(Unreadable, match=re.escape(part)) as refused:
        program(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        ROUNDS,
        DOUBLED,
    ],
    ids=["many rounds", "a text that doubles"],
)
def test_what_takes_too_many_steps_ends(text: str) -> None:
    """DVA-26."""
    began_s = time.monotonic()
    with pytest.raises(EvaluationFailed, match="takes more than 1000000 steps"):
        value(text)
    assert time.monotonic() - began_s < 30


@pytest.mark.parametrize("expression", ["(a+)+$", "(a|a)*b", "(a*)*c", "((a*)*)*d", "(.*)*x"])
def test_a_pattern_takes_no_longer_for_a_text_made_against_it(expression: str) -> None:
    """DVA-24."""
    try:
        assert pattern(expression).is_in("a" * 5000 + "!") is False
    except PatternRefused:
        pytest.fail(f"{expression} is a pattern")


PIECES = st.sampled_from(["a", "b", "[ab]", "[^a]", "(a|b)", "a*", "b+", "(ab)?", "a{1,3}", "(?:b|aa){2}", ".", "c"])


@given(pieces=st.lists(PIECES, min_size=1, max_size=5), is_whole=st.booleans(), text=st.text("abc", max_size=8))
def test_patterns_mean_what_they_mean_elsewhere(pieces: list[str], is_whole: bool, text: str) -> None:
    """DVA-24: within what both can say."""
    expression = "^" + "".join(pieces) + "$" if is_whole else "".join(pieces)

    assert pattern(expression).is_in(text) is (re.search(expression, text) is not None)


@pytest.mark.parametrize(
    "expression", ["(", ")", "[a", "a**", "(?=a)", r"(a)\1", "a{9999}", r"\pL", "*a", "[z-a]", "\\"]
)
def test_a_pattern_that_cannot_be_had_is_refused(expression: str) -> None:
    """DVA-24."""
    with pytest.raises(PatternRefused):
        pattern(expression)


@given(st.text("ab01.()[]{}&|!=<>+-*/%?:,'\" \ndevicr", max_size=60))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    """DVA-26."""
    try:
        made = program(text)
    except Unreadable:
        return
    try:
        made.is_true_of(DEVICE)
    except EvaluationFailed:
        return


def nested(last: str, levels: int = 20) -> str:
    """A list in a list in a list, ten times each; written once, it is as good as endless."""
    text = last
    for number in range(levels, 0, -1):
        text = f"cel.bind(v{number}, [{','.join([f'v{number - 1}'] * 10)}], {text})"
    return f"cel.bind(v0, [0], {text})"


MANY = "[" + ",".join("0" * 1000) + "]"


@pytest.mark.parametrize(
    "text",
    [
        nested("v20 == v20"),
        nested("v20 in [v20]"),
        nested("[v20].indexOf(v20) == 0"),
        nested("{1: v20} == {1: v20}"),
        nested("optional.of(v20) == optional.of(v20)"),
        nested("sets.contains(v20, v20)"),
        f"cel.bind(a, {MANY}, cel.bind(b, a+a+a+a, sets.intersects(b, b.map(x, 1))))",
        f"cel.bind(a, {MANY}, cel.bind(b, a+a+a+a+a+a+a+a, [{','.join('b' * 40)}].flatten().size() > 0))",
    ],
)
def test_lists_in_lists_cost_what_it_takes_to_look_at_them(text: str) -> None:
    failure = program(text).judge(DEVICE).failure

    assert failure in ("takes more than 1000000 steps", "makes more than 8388608 bytes of values")


ODD = (
    "0", "-1", "9223372036854775807", "18446744073709551615u", "1.0/0.0", "0.0/0.0", "1e308", "''", "'a'", "'\u0664'",
    "b'\\xff'", "true", "null", "[]", "[null, null]", "['a', '']", "{'a': 1.5}", "optional.none()", "device",
    "timestamp('9999-12-31T23:59:59Z')", "duration('1h')", "quantity('1e18')", "semver('1.0.0')",
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(FUNCTIONS.by_name))
def test_whatever_a_function_is_given_it_has_a_value_or_fails_as_expressions_do(name: str) -> None:
    """No mistake of Python leaves the evaluation."""
    for one, other in product(ODD, ODD):
        text = f"dyn({one}) {name} dyn({other})"
        if name in ("[]", "[?]"):
            text = f"dyn({one}){name[:-1]}dyn({other})]"
        elif name[0] == ":":
            text = f"dyn({one}).{name[1:]}(dyn({other}))"
        elif name[0].isalpha() and name != "in":
            text = f"{name}(dyn({one}), dyn({other}))"
        for made in (text, text.replace(f", dyn({other})", "").replace(f"(dyn({other}))", "()")):
            try:
                judged = program(f"dyn({made}) == 1").judge(DEVICE)
            except Unreadable:
                continue
            assert isinstance(judged, Judgement)


def test_a_place_that_is_no_number_is_outside_of_a_list() -> None:
    assert program("[1, 2][1.0 / 0.0] == 1").judge(DEVICE).failure == "index out of bounds: inf"
    assert program("[1, 2][0.0 / 0.0] == 1").judge(DEVICE).failure == "index out of bounds: nan"
    assert "no such key" in program("dyn({1: 2})[1.0 / 0.0] == 1").judge(DEVICE).failure
