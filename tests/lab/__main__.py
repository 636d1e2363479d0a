# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.lab`: start a lab, say where it is in one line of JSON, hold it, clean up.

Owns: the lab until SIGTERM, SIGINT or the end of standard input, whichever is first.
Never: prints anything else on standard output; errors go to standard error with status 1.
"""

import argparse
import json
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.images import Image
from tests.lab.lab import Lab

__all__ = ["main"]

READ_BYTES = 4096


def parse_image(text: str) -> Image:
    """`NAME[:TAG][=BYTES,...]`, for instance lab/web:2=1048576,65536."""
    name, _, sizes = text.partition("=")
    path, _, tag = name.partition(":")
    try:
        return Image.sized(path, *(int(size) for size in sizes.split(",") if size), tag=tag or "1")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: expected NAME[:TAG][=BYTES,...]: {error}") from error


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--parent", type=Path, help="where the lab's directory goes (default: temporary files)")
    parser.add_argument(
        "--image", type=parse_image, action="append", default=[], help="push NAME[:TAG][=BYTES,...] to the registry"
    )
    parser.add_argument(
        "--ignore-stdin", action="store_true", help="hold on when standard input ends, as it does in the background"
    )
    return parser.parse_args(argv)


def hold(wakeup: int, is_stdin_watched: bool) -> None:
    """Return at a signal or at the end of standard input."""
    watched = [wakeup, *([sys.stdin.fileno()] if is_stdin_watched else [])]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if wakeup in ready or not os.read(sys.stdin.fileno(), READ_BYTES):
            return


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    wakeup, notify = os.pipe()
    os.set_blocking(notify, False)
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # one that arrives during start or end is noted, so that neither is cut short
        signal.signal(number, lambda *_: None)
    try:
        with Lab.start(parent=options.parent) as lab:
            images = {image.name: lab.push(image) for image in options.image}
            print(json.dumps(lab.describe() | {"images": images}), flush=True)
            hold(wakeup, sys.stdin is not None and not options.ignore_stdin)
    except (LabError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
