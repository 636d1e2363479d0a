# SPDX-License-Identifier: Apache-2.0
"""What a long command says meanwhile, with a clock that the tests move."""

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from agent.model.exit_codes import INTERRUPTED
from kepd_rehearsal.run.progress import ERASE, Progress


class Stream(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def fileno(self) -> int:
        raise OSError("no descriptor")


class Scene:
    """The time moves at each look, and the thread looks when it is told to."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.now_s = 100.0
        self.stream = Stream(is_terminal=is_terminal)
        self.progress = Progress(self.stream, now=lambda: self.now_s)

    def after(self, passed_s: float, text: str = "") -> str:
        self.now_s = 100.0 + passed_s
        if text:
            self.progress(text)
        begin = self.stream.tell()
        self.progress.look()
        return self.stream.getvalue()[begin:]


def test_a_quick_command_says_nothing() -> None:
    scene = Scene(is_terminal=True)
    scene.after(0.0, "reading")
    scene.after(1.9)
    scene.progress.end()

    assert scene.stream.getvalue() == ""


def test_a_terminal_has_one_line_that_is_renewed_and_goes() -> None:
    scene = Scene(is_terminal=True)
    first, second, same = scene.after(2.0, "reading"), scene.after(2.4, "change 1 of 2"), scene.after(2.4)
    scene.progress.end()
    late = scene.after(9.0, "late")

    assert (first, second, same, late) == (f"{ERASE}reading (2 s)", f"{ERASE}change 1 of 2 (2 s)", "", "")
    assert scene.stream.getvalue().endswith(ERASE)
    assert "\n" not in scene.stream.getvalue()


def test_elsewhere_a_line_comes_every_few_seconds() -> None:
    scene = Scene(is_terminal=False)
    told = [scene.after(passed_s / 2, "reading") for passed_s in range(30)]

    assert [one for one in told if one] == ["reading (2 s)\n", "reading (7 s)\n", "reading (12 s)\n"]


def test_a_note_stays_and_the_line_comes_again_below_it() -> None:
    scene = Scene(is_terminal=True)
    scene.after(2.0, "reading")
    scene.progress.say("3 pods are taken as placed")
    again = scene.after(2.0)

    assert scene.stream.getvalue() == f"{ERASE}reading (2 s){ERASE}3 pods are taken as placed\n{again}"
    assert again == f"{ERASE}reading (2 s)"


def test_names_of_others_cannot_steer_a_terminal_or_wrap() -> None:
    scene = Scene(is_terminal=True)
    line = scene.after(2.0, "advice for \x1b[31mshop/\nweb" + "x" * 200).removeprefix(ERASE)
    scene.progress.say("\x1b[2J")

    assert "\x1b" not in line
    assert len(line) == 79
    assert scene.stream.getvalue().endswith(f"{ERASE}?[2J\n")


def test_the_thread_looks_until_the_end() -> None:
    stream, looks = Stream(is_terminal=True), iter([False, False, True])
    done = threading.Event()

    def wait(_ended: threading.Event, _pause_s: float) -> bool:
        is_over = next(looks)
        if is_over:
            done.set()
        return is_over

    times = iter([0.0, 3.0, 4.0])
    progress = Progress(stream, now=lambda: next(times), wait=wait)
    progress("reading")
    with progress:
        assert done.wait(10)

    assert stream.getvalue() == f"{ERASE}reading (3 s){ERASE}reading (4 s){ERASE}"


def test_nobody_who_listens_is_no_failure() -> None:
    scene = Scene(is_terminal=False)
    scene.stream.close()

    scene.progress.say("a note")
    scene.progress.look()
    scene.progress.end()


def test_an_interrupt_ends_with_its_code_and_leaves_no_line(tmp_path: Path) -> None:
    """It waits for what a pipe never says, so it is in the middle of reading for sure."""
    pipe = tmp_path / "cluster.json"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "agent.cli.main", "what-if", "--from-files", str(pipe), "--drain", "n0"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with running, pipe.open("w"):  # opened once it reads
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)

    assert (running.returncode, out, err.strip()) == (INTERRUPTED, "", "")
