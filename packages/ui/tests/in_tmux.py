# SPDX-License-Identifier: Apache-2.0
"""A terminal to look at: tmux with a server of its own, and one window of a known size."""

import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

WITHIN_S = 30.0


class Window:
    """What runs in it leaves its exit code, and the terminal's modes before and after, in files of `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = str(folder / "tmux")

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=WITHIN_S).stdout

    def start(self, command: Sequence[str], width: int, height: int) -> None:
        script = (
            f"cd {shlex.quote(str(self._folder))}; stty -g >before; {shlex.join(command)} 2>errors; echo $? >code; "
            "stty -g >after; echo returned; exec cat"
        )
        self.tmux("-u", "new-session", "-d", "-x", str(width), "-y", str(height), shlex.join(["sh", "-c", script]))

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def wait(self, *texts: str, gone: str = "") -> str:
        """Until all of them are seen, and `gone` is not."""
        until_s = time.monotonic() + WITHIN_S
        while True:
            shown = self.screen()
            if all(text in shown for text in texts) and not (gone and gone in shown):
                return shown
            assert time.monotonic() < until_s, f"no {texts} (or still {gone!r}) in:\n{shown}"
            time.sleep(0.05)

    def flags(self) -> str:
        """Whether the other screen is shown, and the cursor."""
        return self.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}").strip()

    def pid(self) -> int:
        """Of what runs below the shell."""
        shell = int(self.tmux("display-message", "-p", "#{pane_pid}"))
        return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])

    def left(self, name: str) -> str:
        return (self._folder / name).read_text().strip()

    def end(self) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], capture_output=True, check=False)


@contextmanager
def window(folder: Path, command: Sequence[str], width: int = 140, height: int = 40) -> Iterator[Window]:
    os.environ.pop("TMUX", None)
    opened = Window(folder)
    try:
        opened.start(command, width, height)
        yield opened
    finally:
        opened.end()
