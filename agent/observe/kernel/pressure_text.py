# SPDX-License-Identifier: Apache-2.0
"""Pressure stall files: how long something waited for the processor, memory or a disk.

`some` is what the kubelet calls waiting, `full` what it calls stalled. Totals are microseconds; averages are percents.
"""

import re

import msgspec

from agent.observe.kernel.numbers import number

LINE = re.compile(rb"^(some|full) avg10=([0-9]{1,3}\.[0-9]{1,2}) .*total=([0-9]+)\s*$", re.MULTILINE)


class PressureFigures(msgspec.Struct, frozen=True, gc=False):
    """None where the file does not say, as with `full` of the processor on older kernels."""

    waiting_us: int | None = None
    stalled_us: int | None = None
    waiting_avg10: float | None = None
    stalled_avg10: float | None = None


NOTHING = PressureFigures()
# A whole file: two lines of five words.
WHOLE = range(10)


def read_pressure(text: bytes) -> PressureFigures:
    words = text.split()
    try:
        if len(words) == len(WHOLE) and words[0] == b"some" and words[5] == b"full":
            return PressureFigures(
                int(words[4].removeprefix(b"total=")),
                int(words[9].removeprefix(b"total=")),
                float(words[1].removeprefix(b"avg10=")),
                float(words[6].removeprefix(b"avg10=")),
            )
    except ValueError:
        pass
    return _read_part(text)


def _read_part(text: bytes) -> PressureFigures:
    """Of a file that has but one line, or was cut off."""
    found = {kind: (float(average), number(total)) for kind, average, total in LINE.findall(text[:1024])}
    (some_avg10, some_us), (full_avg10, full_us) = (found.get(one, (None, None)) for one in (b"some", b"full"))
    return PressureFigures(some_us, full_us, some_avg10, full_avg10)
