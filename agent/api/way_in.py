# SPDX-License-Identifier: Apache-2.0
"""The way into the door: kubeconfigs, each for a level that its caller has."""

from collections.abc import Callable

from google.rpc import code_pb2

from agent.api.access import LEVEL_NAMES, AccessRule
from agent.api.errors import ApiError, FailureReason, invalid, not_permitted
from agent.api.peer import CALLER

LEVELS = {name: level for level, name in LEVEL_NAMES.items()}
METHOD = "GetKubeconfig"


class WayIn:
    """`make` writes the kubeconfig of a level; it raises KeyError until the door is open."""

    def __init__(self, rule: Callable[[], AccessRule], make: Callable[[str], str]) -> None:
        self._rule, self._make = rule, make

    def kubeconfig(self, level: str) -> str:
        wanted = LEVELS.get(level)
        if wanted is None:
            text = f"level {level[:20]!r} is unknown; expected one of {', '.join(LEVELS)}"
            raise invalid(FailureReason.MALFORMED_REQUEST, text, [("level", text)])
        peer = CALLER.get()
        if peer is None or self._rule().level_of(peer) < wanted:
            raise not_permitted(
                METHOD, level, str(peer or "an unknown process"), "ask for a lower level, or call it as root"
            )
        try:
            return self._make(level)
        except KeyError as error:
            text = "the door is not open yet; `kepctl status` says why"
            raise ApiError(code_pb2.UNAVAILABLE, FailureReason.ENDING, text, retry_after_s=1.0) from error


def closed() -> ApiError:
    text = "the door is closed; set api.door.address, such as 127.0.0.1:10246, and restart kepd"
    return ApiError(code_pb2.FAILED_PRECONDITION, FailureReason.NEEDS_RESTART, text)
