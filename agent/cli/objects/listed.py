# SPDX-License-Identifier: Apache-2.0
"""The list of a kind, asked of the daemon. Modules of kinds are imported when one is asked for: most of what a short
command costs is its imports."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agent.cli.session import CommandFailed
from agent.kinds.registry import Kind
from agent.kinds.shown import AnyListing, Ask, How, shown_of
from agent.model.exit_codes import CONFLICT, FAILURE

if TYPE_CHECKING:
    from agent.cli.client import Client


def listed(daemon: "Client", kind: Kind, *, with_objects: bool = False, is_wide: bool = False) -> AnyListing:
    shown = shown_of(kind)
    return shown.listing(kind, answers_to(daemon, shown.asks(kind, How(with_objects, is_wide))))


def answers_to(daemon: "Client", asks: Sequence[Ask]) -> list[Any]:
    """None for one that may fail, because its plane is off; where all do, the first says why."""
    found: list[Any] = []
    failed: list[CommandFailed] = []
    for ask in asks:
        try:
            found.append(daemon.call(ask.method, ask.request, ask.answer))
        except CommandFailed as error:
            if not ask.may_fail or error.exit_code not in (CONFLICT, FAILURE):
                raise
            failed.append(error)
            found.append(None)
    if failed and len(failed) == len(found):
        raise failed[0]
    return found
