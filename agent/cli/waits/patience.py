# SPDX-License-Identifier: Apache-2.0
"""One wait of a command: until when, and what is still waited for, said as it changes.

The command says why it still waits: whenever the reason changes, and at least every ten seconds.
"""

import re
import time
from collections.abc import Mapping

import click

from agent.cli.session import CommandFailed
from agent.model.exit_codes import DEADLINE
from agent.model.finding import printable

LOOK_S, SAY_S = 0.2, 10.0
NUMBERS = re.compile(r"\d+")


class Patience:
    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began_s = self._said_s = time.monotonic()
        self._said: dict[str, str] = {}

    @property
    def left_s(self) -> float:
        return max(self._began_s + self._limit_s - time.monotonic(), 0.0)

    def say(self, left: Mapping[str, str]) -> None:
        """`left`: what is waited for, and why it is not there. Moments and counts alone are no news."""
        now_s = time.monotonic()
        is_due = now_s - self._said_s >= SAY_S
        for what, why in left.items():
            gist = NUMBERS.sub("0", why)
            if is_due or (why and self._said.get(what) != gist):
                self._said[what], self._said_s = gist, now_s
                click.echo(printable(f"{what}: {why or 'not yet'} ({now_s - self._began_s:.0f} s)"), err=True)

    def check(self, left: Mapping[str, str]) -> None:
        """Says what is left. Raises, with the reasons, once the time is over."""
        if not self.left_s:
            texts = "; ".join(f"{what}: {why}" if why else what for what, why in sorted(left.items()))
            text = f"not in time, after {self._limit_s:g} s: {texts}; --timeout allows more"
            raise CommandFailed(printable(text), DEADLINE)
        self.say(left)

    def rest(self, left: Mapping[str, str]) -> None:
        """The same, and a pause until the next look."""
        self.check(left)
        time.sleep(LOOK_S)
