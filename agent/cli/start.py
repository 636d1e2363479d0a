# SPDX-License-Identifier: Apache-2.0
"""Where a kepctl begins. `get pods` in its common forms, and names of pods after Tab, are answered here, before click,
gRPC and protobuf are loaded.

Such a command is asked often, by people and by scripts, and nearly all of its time was imports. What is not among the
common forms, and whatever fails, goes the usual way, which says why.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.cli.quick.words import PODS, words_and_options
from agent.model.exit_codes import DEADLINE, FAILURE, INTERRUPTED

if TYPE_CHECKING:
    from agent.kinds.table import Listing

TIMEOUT_S = 10.0
"""The default of `--timeout`."""
OUTPUTS = ("table", "wide", "name")


def common_form(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]] | None:
    """The words and options of a `get pods` that can be answered here; None for all else."""
    found = words_and_options(arguments)
    if found is None:
        return None
    words, options = found
    is_known = words[:1] == ["get"] and len(words) > 1 and words[1] in PODS and not any("/" in one for one in words)
    is_plain = options.get("output", "table") in OUTPUTS and not {"namespace", "everywhere"} <= options.keys()
    return (words[1:], options) if is_known and is_plain else None


def listed_pods(words: Sequence[str], options: Mapping[str, str]) -> "Listing[Any] | None":
    """Those that are asked for; None where the usual way has more to say. Raises CommandFailed."""
    from agent.cli.objects.selection import Scope, picked
    from agent.cli.objects.words import parse_wanted
    from agent.cli.quick.pods import quick_pods
    from agent.cli.session import TOO_LATE, CommandFailed, Session
    from agent.kinds.pods.pods import pod_listing

    paths = Session(endpoint=options.get("endpoint")).sockets()
    try:
        pods = quick_pods(paths[0], TIMEOUT_S) if len(paths) == 1 else None
    except TimeoutError as error:
        raise CommandFailed(TOO_LATE, DEADLINE) from error
    if not pods:
        return None
    scope = Scope(options.get("namespace", ""), options.get("selector", ""))
    listing = picked(pod_listing(pods), parse_wanted(words)[0], scope)
    return listing if listing.items else None


def print_pods(listing: "Listing[Any]", output: str) -> None:
    from agent.cli.plain_rows import print_plain

    if output == "name":
        sys.stdout.write("".join(f"{listing.name(pod)}\n" for pod in listing.items))
        return
    columns = [column for column in listing.columns if output == "wide" or not column.wide]
    print_plain([one.title for one in columns], [[one.cell(pod) for one in columns] for pod in listing.items])


def answered(arguments: Sequence[str]) -> bool:
    """Whether all was said. A terminal gets colours, in the usual way; a shell asks in the environment."""
    if "_KEPCTL_COMPLETE" in os.environ:
        return completed()
    form = None if sys.stdout.isatty() else common_form(arguments)
    if form is None:
        return False
    from agent.cli.session import CommandFailed
    from agent.cli.terminal import clean_streams

    clean_streams()
    words, options = form
    try:
        listing = listed_pods(words, options)
    except CommandFailed as error:
        sys.stderr.write(f"kepctl: {error}\n")
        sys.exit(error.exit_code)
    if listing is not None:
        print_pods(listing, options.get("output", "table"))
        sys.stdout.flush()
    return listing is not None


def completed() -> bool:
    from agent.cli.quick.completion import completion

    text = completion(os.environ)
    if text is not None:
        from agent.cli.terminal import clean_streams

        clean_streams()
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    return text is not None


def main() -> None:
    """Entry point of `kepctl`."""
    try:
        if answered(sys.argv[1:]):
            return
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(FAILURE)
    except OSError as error:
        sys.stderr.write(f"kepctl: the output cannot be written: {error.strerror}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILURE)
    from agent.cli.main import main as usual

    usual()


if __name__ == "__main__":
    main()
