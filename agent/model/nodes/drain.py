# SPDX-License-Identifier: Apache-2.0
"""That a node takes no pods, cordoned or drained: who asked for it, when, and what still runs."""

import msgspec


class NodeDrain(msgspec.Struct, frozen=True, kw_only=True):
    """A reboot ends it, so it has the boot that it belongs to."""

    by: str
    began_at_s: float
    boot_id: str = ""
    most_s: float = 0.0
    """The longest grace that a pod gets; 0: its own."""
    keeps_pods: bool = False
    """Cordoned: those that run go on."""
    waits_for: tuple[str, ...] = ()
