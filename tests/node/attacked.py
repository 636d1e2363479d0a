# SPDX-License-Identifier: Apache-2.0
"""A daemon while others do their worst: does it live, does it answer, does honest work go on, and how quickly?"""

import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable

from tests.host.other_user import NOBODY
from tests.host.process import Kepd
from tests.lab.limited import Limited

BEGINS_S = 0.5
"""An attack is under way by then."""


class Watcher(threading.Thread):
    """Asks /livez all the time."""

    def __init__(self, kepd: Kepd) -> None:
        super().__init__(daemon=True)
        self.kepd = kepd
        self.took_s: list[float] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(0.1):
            began_s = time.monotonic()
            status, _ = self.kepd.get("/livez")
            self.took_s.append(time.monotonic() - began_s if status == 200 else float("inf"))


def attacked(
    kepd: Kepd,
    group: Limited,
    attack: Callable[..., None],
    argument: object,
    honest: Callable[[], float],
    *,
    as_nobody: bool,
) -> None:
    """It lives, answers and works on meanwhile; how quickly is printed. The attack comes from another process."""
    watcher = Watcher(kepd)
    watcher.start()
    attacker = multiprocessing.get_context("fork").Process(target=_attack, args=(attack, argument, as_nobody))
    attacker.start()
    time.sleep(BEGINS_S)
    took_s = honest()
    attacker.join(60.0)
    attacker.kill()
    attacker.join()
    watcher.is_over.set()
    watcher.join()
    answers = sorted(watcher.took_s)
    print(
        f"{attack.__name__}: honest work in {took_s:.2f} s, /livez in {answers[-1]:.3f} s at most of {len(answers)},"
        f" {group.peak_bytes() >> 20} MiB at most"
    )
    assert kepd.process is not None
    assert kepd.process.poll() is None, kepd.log.read_text()[-2000:]
    assert not group.was_killed(), attack.__name__
    assert answers[-1] < float("inf"), attack.__name__


def _attack(attack: Callable[..., None], argument: object, as_nobody: bool) -> None:
    # What other tests left belongs to the parent.
    gc.freeze()
    if as_nobody:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    attack(argument)
