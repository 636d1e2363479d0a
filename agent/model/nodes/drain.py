# SPDX-License-Identifier: Apache-2.0
"""That a node takes no pods, cordoned or drained: who asked for it, when, and what still runs."""

import msgspec


class KeptPod(msgspec.Struct, frozen=True, kw_only=True):
    """One that does not end yet, and why."""

    pod: str
    why: str


class NodeDrain(msgspec.Struct, frozen=True, kw_only=True):
    """A reboot ends it, so it has the boot that it belongs to. `reason` is for people; `selector` chooses pods by their
    labels; `surges`: where there is room, a pod has a replacement before it ends; `is_forced`: no budget keeps one."""

    by: str
    reason: str = ""
    selector: str = ""
    surges: bool = False
    is_forced: bool = False
    began_at_s: float
    boot_id: str = ""
    most_s: float = 0.0
    """The longest grace that a pod gets; 0: its own."""
    keeps_pods: bool = False
    """Cordoned: those that run go on."""
    waits_for: tuple[str, ...] = ()
    kept: tuple[KeptPod, ...] = ()
