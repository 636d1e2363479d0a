# SPDX-License-Identifier: Apache-2.0
"""What leads packets of Services beside the rules of a backend, and how people see it.

A relay on localhost, flows that skip the rules, the guard of a boot: each answers for itself what `explain route`,
`trace`, `rules` and `diff` show of it.
"""

from collections.abc import Iterable
from typing import Protocol

from agent.model.services.nft_table import Family
from agent.model.services.report import RuleReport
from agent.model.services.service import ServiceKey
from agent.services.nftables.trace import Outcome, Packet
from agent.services.routes.frontends import PortPlan


class Beside(Protocol):
    """Who has nothing to say inherits the bodies."""

    def findings(self, key: ServiceKey) -> Iterable[str]:  # noqa: ARG002
        """What of a Service does not work."""
        return ()

    def told(self, family: Family, port: PortPlan) -> Iterable[str]:  # noqa: ARG002
        """Lines of `explain route` about one port."""
        return ()

    def rows(self, key: ServiceKey | None = None, *, is_standing: bool) -> Iterable[RuleReport]:  # noqa: ARG002
        """As it is, or as it should be; of one Service, or all. One that belongs to no Service is among all."""
        return ()

    def instead(self, packet: Packet, *, is_standing: bool) -> Outcome | None:  # noqa: ARG002
        """What becomes of a packet that no rule sees; None: rules do."""
        return None

    def afterwards(self, packet: Packet, outcome: Outcome) -> Outcome:  # noqa: ARG002
        """With what happens to the connection later on."""
        return outcome
