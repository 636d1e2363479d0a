# SPDX-License-Identifier: Apache-2.0
"""Searches as work for a desk: claims, slices and expressions are written by strangers, and so is what they take."""

from typing import Any

import msgspec

from kepd_devices.plan.reasons import CannotAllocate
from kepd_devices.plan.results import allocations
from kepd_devices.plan.search import Question, search


class Found(msgspec.Struct, frozen=True):
    """`allocations` as in the status of the claims, None where they wait: `stuck` says for what. `error`: a person has
    to mend something first."""

    allocations: list[dict[str, Any]] | None = None
    stuck: str = ""
    tried: int = 0
    error: str = ""


def found(given: bytes) -> bytes:
    question = msgspec.msgpack.decode(given, type=Question)
    try:
        answer = search(question)
    except CannotAllocate as error:
        return msgspec.msgpack.encode(Found(error=str(error)))
    made = allocations(answer, question.node.name) if answer.given is not None else None
    return msgspec.msgpack.encode(Found(made, str(answer.stuck), answer.tried))
