# SPDX-License-Identifier: Apache-2.0
"""One question to an endpoint of a Service, whether it answers, and what came of it."""

from typing import Literal, NamedTuple

from agent.model.services.service import Protocol

Outcome = Literal["open", "answered", "refused", "unreachable", "silent", "unknown"]
"""`unknown`: this node could not ask, which says nothing of the endpoint."""


class Asked(NamedTuple):
    """An endpoint's own address and port; `data` is both, as the kernel has them."""

    protocol: Protocol
    data: bytes
