# SPDX-License-Identifier: Apache-2.0
"""Files of `--connections`: each has the answer of a `kepctl end connections --dry-run -o json`."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from agent.cli.session import CommandFailed
from agent.model.exit_codes import USAGE
from agent.model.text.json_text import decode_json
from kepd_rehearsal.effects.connections import ConnectionAnswer, OpenConnections, counted


def read_connections(paths: Iterable[Path]) -> OpenConnections:
    """Raises CommandFailed."""
    return counted(map(_answer, paths))


def _answer(path: Path) -> ConnectionAnswer:
    try:
        return decode_json(path.read_bytes(), ConnectionAnswer)
    except OSError as error:
        raise CommandFailed(f"{path}: cannot be read: {error.strerror}", USAGE) from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        right = "kepctl end connections NAMESPACE/NAME --to IP:PORT --dry-run -o json"
        raise CommandFailed(f"{path}: has no connections: {error}; expected the answer of {right}", USAGE) from error
