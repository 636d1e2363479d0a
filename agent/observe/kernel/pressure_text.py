# SPDX-License-Identifier: Apache-2.0
"""Pressure stall files: how long something waited for the processor, memory or a disk (PSI-01).

`some` is what the kubelet calls waiting, `full` what it calls stalled. Totals are microseconds; averages are percents.
"""

import re

import msgspec

from agent.observe.kernel.numbers import number

LINE = re.compile(rb"^(some|full) avg10=([0-9]{1,3}\.[0-9]{1,2}) .*total=([0-9]+)\s*$", re.MULTILINE)


class Pressure(msgspec.Struct, frozen=True):
    """None where the file does not say, as with `full` of the processor on older kernels."""

    waiting_us: int | None = None
    stalled_us: int | None = None
    waiting_avg10: float | None = None
    stalled_avg10: float | None = None


NOTHING = Pressure()


def read_pressure(text: bytes) -> Pressure:
    found = {kind: (float(average), number(total)) for kind, average, total in LINE.findall(text[:1024])}
    (some_avg10, some_us), (full_avg10, full_us) = (found.get(one, (None, None)) for one in (b"some", b"full"))
    return Pressure(some_us, full_us, some_avg10, full_avg10)
