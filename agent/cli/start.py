# SPDX-License-Identifier: Apache-2.0
"""Where a kepctl begins. `get` in its common forms, and names after Tab, are answered here, before click, gRPC and
protobuf are loaded.

Such a command is asked often, by people and by scripts, and nearly all of its time was imports. What is not among the
common forms, and whatever fails, goes the usual way, which says why.
"""

import os
import sys
from collections.abc import Mapping, Sequence

from agent.cli.plain_rows import print_plain
from agent.cli.quick.rows import quick_rows
from agent.cli.quick.words import words_and_options
from agent.cli.session import TOO_LATE, Session
from agent.cli.terminal import clean_streams
from agent.kinds.registry import BY_WORD
from agent.kinds.selection import Scope, picked
from agent.kinds.table import Table
from agent.model.exit_codes import DEADLINE, FAILURE, INTERRUPTED, NOT_FOUND, USAGE
from agent.model.finding import printable
from agent.model.refused import Refused

TIMEOUT_S = 10.0
"""The default of `--timeout`."""
OUTPUTS = ("table", "wide", "name")


def common_form(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]] | None:
    """The words and options of a `get` of one kind that can be answered here; None for all else."""
    found = words_and_options(arguments)
    if found is None:
        return None
    words, options = found
    is_known = words[:1] == ["get"] and len(words) > 1 and words[1] in BY_WORD and not any("/" in one for one in words)
    is_plain = options.get("output", "table") in OUTPUTS and not {"namespace", "everywhere"} <= options.keys()
    return (words[1:], options) if is_known and is_plain else None


def listed_rows(words: Sequence[str], options: Mapping[str, str]) -> Table | None:
    """Those that are asked for; None where the usual way has more to say. Raises Refused."""
    paths = Session(endpoint=options.get("endpoint")).sockets()
    if len(paths) != 1:
        return None
    kind, scope = BY_WORD[words[0]], Scope(options.get("namespace", ""), options.get("selector", ""))
    table = quick_rows(
        paths[0], kind, scope, TIMEOUT_S, is_wide=options.get("output") == "wide", with_ended=bool(words[1:])
    )
    if table is not None and words[1:]:
        table.rows, table.notes = picked(table.rows, kind, words[1:], scope.namespace), ()
    return table if table is not None and table.rows else None


def print_rows(table: Table, output: str) -> None:
    if output == "name":
        sys.stdout.write("".join(f"{row.shown}\n" for row in table.rows))
        return
    print_plain([one.title for one in table.columns], [row.cells for row in table.rows])
    sys.stderr.write("".join(f"{printable(note)}\n" for note in table.notes))


def answered(arguments: Sequence[str]) -> bool:
    """Whether all was said. A terminal gets colours, in the usual way; a shell asks in the environment."""
    if "_KEPCTL_COMPLETE" in os.environ:
        return completed()
    form = None if sys.stdout.isatty() else common_form(arguments)
    if form is None:
        return False
    clean_streams()
    words, options = form
    try:
        table = listed_rows(words, options)
    except Refused as error:
        sys.stderr.write(f"kepctl: {error}\n")
        sys.exit(NOT_FOUND if error.kind == "no_object" else USAGE)
    except TimeoutError:
        sys.stderr.write(f"kepctl: {TOO_LATE}\n")
        sys.exit(DEADLINE)
    if table is not None:
        print_rows(table, options.get("output", "table"))
        sys.stdout.flush()
    return table is not None


def completed() -> bool:
    from agent.cli.quick.completion import completion

    text = completion(os.environ)
    if text is not None:
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
