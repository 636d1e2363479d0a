# SPDX-License-Identifier: Apache-2.0
"""Pressure as a test says it is."""

LINE = "{kind} avg10={share:.2f} avg60=0.00 avg300=0.00 total=0\n"


class FakePressure:
    """Shares in percent."""

    def __init__(self, io_some: float = 0.0, memory_full: float = 0.0) -> None:
        self.io_some, self.memory_full = io_some, memory_full

    def texts(self) -> tuple[str, str]:
        io = LINE.format(kind="some", share=self.io_some) + LINE.format(kind="full", share=0)
        return io, LINE.format(kind="some", share=0) + LINE.format(kind="full", share=self.memory_full)
