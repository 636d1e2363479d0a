# SPDX-License-Identifier: Apache-2.0
"""Patterns of credentials are written by tenants."""

import re

from hypothesis import given
from hypothesis import strategies as st

from agent.images.access.match_key import _label_matches, is_match


def test_a_pattern_of_stars_is_matched_in_no_time() -> None:
    """FX-2: as a regular expression forty stars took six minutes of the loop."""
    long = "r" * 60 + ".example"

    assert not is_match("*" * 60 + "x.example/app", "registry.example/app")
    assert not is_match("*r" * 59 + "*x.example/app", f"{long}/app")
    assert is_match("*" * 60 + "y.example/app", "registry.example/app")


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_stars_stand_for_any_letters(pattern: str, label: str) -> None:
    wanted = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), label, re.DOTALL) is not None

    assert _label_matches(pattern, label) == wanted
