# SPDX-License-Identifier: Apache-2.0
"""Bytes from outside are a value or an error of their decoder, whatever they are."""

import contextlib
import random
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.cases import FOLDER
from tests.fuzz.mutating import mutated
from tests.fuzz.targets import TARGETS, Target
from tests.host.process import ROOT

BY_NAME = {one.name: one for one in TARGETS}
CASES = sorted(path for path in FOLDER.glob("*-*"))


@pytest.mark.parametrize("target", TARGETS, ids=lambda one: one.name)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.binary(max_size=300), seed=st.integers(0, 2**32))
def test_no_bytes_make_a_decoder_fail_otherwise(target: Target, data: bytes, seed: int) -> None:
    for one in (data, mutated(target.seeds, random.Random(seed))):
        with contextlib.suppress(*target.errors):
            target.decode(one)


@pytest.mark.parametrize("name", [path.name for path in CASES])
def test_what_once_failed_does_no_more(name: str) -> None:
    target = BY_NAME[name.rpartition("-")[0]]
    with contextlib.suppress(*target.errors):
        target.decode((FOLDER / name).read_bytes())


@pytest.mark.parametrize("target", TARGETS, ids=lambda one: one.name)
def test_every_search_begins_with_something_to_take_apart(target: Target) -> None:
    assert target.seeds


def test_the_page_on_security_lists_them_all() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    (listed,) = re.findall(r"<!-- decoders -->\n(.*?)\n<!-- end -->", page, re.DOTALL)

    assert set(re.findall(r"`([a-z-]+)`", listed)) == set(BY_NAME)
