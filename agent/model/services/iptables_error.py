# SPDX-License-Identifier: Apache-2.0
"""How work on iptables fails, beyond what it has in common with nftables.

Each failure is one of nft_error.py too, whose classes tell a sync what to do: read again, set a Service aside, give up
the right.
"""

from agent.model.services.nft_error import NftFailed, RulesRefused


class LockHeld(NftFailed):
    """Another program held the lock of iptables for longer than we may wait."""


class ExtensionMissing(RulesRefused):
    """A match or target that the program or the kernel does not have. `line` is the rule that wanted it."""

    def __init__(self, reason: str, *, line: str = "") -> None:
        super().__init__(reason)
        self.line = line
