# SPDX-License-Identifier: Apache-2.0
"""What a piece of work costs, in lines of Python that it runs: the same on every machine, and at every load."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_of(work: Callable[[], object]) -> int:
    count = 0

    def trace(_frame: FrameType, _event: str, _argument: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
