# SPDX-License-Identifier: Apache-2.0
"""What it costs to read and check an object grows with the object, whichever of its lists somebody makes long.

Counted in lines of Python, so that no clock decides. Twice as many items may cost twice as much, and a little more for
what is sorted; a look at each pair of them would cost four times as much.
"""

from functools import partial

import msgspec
import pytest

from agent.config.document import Configuration
from agent.objects.all_readings import check_manifest
from tests.price.counting import lines_of
from tests.price.grown import SPECS, grown

SIZE = 150
# For what sorts. A look at each pair, once, would be 34 000 more.
MOST_MORE = 3000


@pytest.mark.parametrize("kind", SPECS)
def test_reading_costs_no_more_than_in_proportion(kind: str) -> None:
    configuration, dear = Configuration(), {}
    for path, made in grown(kind):
        texts = [msgspec.json.encode(made.of(size)) for size in (SIZE, 2 * SIZE)]
        small, large = (lines_of(partial(check_manifest, "m", text, configuration)) for text in texts)
        if large - 2 * small > MOST_MORE:
            dear[path] = small, large

    assert dear == {}
