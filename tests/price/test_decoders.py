# SPDX-License-Identifier: Apache-2.0
"""What it costs to decode what somebody else sends grows with it, whichever part of it is repeated."""

from contextlib import suppress
from functools import partial

import pytest

from tests.fuzz.targets import TARGETS, Target
from tests.price.counting import lines_of
from tests.price.texts import growing

SIZE = 200
MOST_MORE = 4000


def decoded(target: Target, text: bytes) -> None:
    with suppress(*target.errors):
        target.decode(text)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_decoding_costs_no_more_than_in_proportion(target: Target) -> None:
    dear = {}
    for seed in target.seeds:
        for part, grow in growing(seed):
            small, large = (lines_of(partial(decoded, target, grow(size))) for size in (SIZE, 2 * SIZE))
            if large - 2 * small > MOST_MORE:
                dear[part] = small, large

    assert dear == {}
