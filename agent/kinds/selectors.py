# SPDX-License-Identifier: Apache-2.0
"""Label selectors, as `-l` takes them: `a=b`, `a==b`, `a!=b`, `a`, `!a`, `a in (x,y)`, `a notin (x,y)`."""

import re
from collections.abc import Callable, Mapping

from agent.model.refused import Refused

KEY = r"[A-Za-z0-9][A-Za-z0-9._/-]*"
VALUE = r"[A-Za-z0-9._-]*"
SET = re.compile(rf"({KEY})\s+(in|notin)\s+\(([^()]*)\)", re.ASCII)
EQUAL = re.compile(rf"({KEY})\s*(==|=|!=)\s*({VALUE})", re.ASCII)
THERE = re.compile(rf"(!?)\s*({KEY})", re.ASCII)
BETWEEN = re.compile(r",(?![^(]*\))")

Labels = Mapping[str, str]
Test = Callable[[Labels], bool]


def parse_selector(text: str) -> Test:
    """Whether labels have all that the text asks for; nothing asks for nothing."""
    tests = [_test(part.strip()) for part in BETWEEN.split(text)] if text.strip() else []
    return lambda labels: all(test(labels) for test in tests)


def _test(part: str) -> Test:
    if found := SET.fullmatch(part):
        key, word, values = found[1], found[2], {one.strip() for one in found[3].split(",")}
        return lambda labels: (labels.get(key) in values) == (word == "in")
    if found := EQUAL.fullmatch(part):
        key, sign, value = found.groups()
        return lambda labels: (labels.get(key) == value) == (sign != "!=")
    if found := THERE.fullmatch(part):
        sign, key = found.groups()
        return lambda labels: (key in labels) == (not sign)
    wrong = f'"{part}" is no part of a label selector; expected KEY=VALUE, KEY!=VALUE, KEY, !KEY or KEY in (A,B)'
    raise Refused("selection", wrong)
