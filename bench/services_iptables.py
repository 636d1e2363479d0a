# SPDX-License-Identifier: Apache-2.0
"""Services by iptables: what the plane costs beside the program that it runs.

Measures: the first sync against one iptables-restore of the finished text, and single changes against one restore of
the same few chains, with both variants, each in a network namespace of its own. Takes minutes at full size.
`python -m bench.services_iptables WORK VARIANT N` is the half that runs in there.
"""

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import structlog

from agent.drivers.clock.driver import SystemClock
from agent.drivers.iptables.driver import IptablesTables
from agent.drivers.iptables.text import restore_text
from agent.kit.memory import large_work, settle_memory
from agent.model.services.iptables_rules import Chains, RulesChange, Variant
from agent.model.services.nft_error import NftFailed
from agent.services.iptables.frame import rule_settings
from agent.services.iptables.mirror import IptablesMirror
from agent.services.objects.node_state import NodeSettings
from agent.services.run.intake import ServiceInputs
from agent.services.run.iptables_ruleset import IptablesRuleset
from agent.services.run.plane import ServicesPlane
from tests.lab.namespace import Namespace
from tests.services.making import make_service, make_slice

Row = tuple[str, float, str, str]
SIZE, ENDPOINTS, CHANGES = 5000, 10, 20
WITHIN_S = 1200.0


def addresses(number: int) -> list[str]:
    first = number * ENDPOINTS
    return [f"10.{128 + (one >> 16)}.{one >> 8 & 255}.{one & 255}" for one in range(first, first + ENDPOINTS)]


def put(intake: ServiceInputs, number: int, endpoints: list[str]) -> None:
    vip = f"10.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
    intake.put_service(make_service(f"s{number}", ip=vip))
    intake.put_slice(make_slice(endpoints, service=f"s{number}", name=f"s{number}-x"))


class Told:
    """What every apply took, and the last change."""

    def __init__(self, tables: IptablesTables) -> None:
        self.tables = tables
        self.change = RulesChange()
        self.took_s = 0.0
        self._apply = tables.apply
        tables.apply = self.apply  # type: ignore[method-assign]

    async def apply(self, change: RulesChange, ahead: Iterable[Chains] = ()) -> None:
        self.change = change
        began_s = time.perf_counter()
        await self._apply(change, ahead)
        self.took_s = time.perf_counter() - began_s


def filled(size: int, variant: Variant) -> tuple[ServiceInputs, ServicesPlane, Told]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    intake = ServiceInputs(NodeSettings(node="n0", addresses=("192.168.0.10",)), tell=print, started_s=0.0)
    tables = IptablesTables("IPv4", variant=variant)
    told = Told(tables)
    rules = IptablesRuleset(tables, clock=SystemClock())
    plane = ServicesPlane(intake, {"IPv4": rules}, clock=SystemClock(), tell=print)
    for number in range(1, size + 1):
        put(intake, number, addresses(number))
    gc.collect()
    return intake, plane, told


async def restore(variant: Variant, size: int) -> dict[str, float]:
    """The finished text and nothing else."""
    _, plane, _ = filled(size, variant)
    sync = plane.families["IPv4"]
    mirror = IptablesMirror()
    settings = rule_settings(sync.facts)
    text = restore_text(mirror.repair({}, mirror.stage(sync.desired.update(), settings)))
    return {"restore_s": timed(variant, text), "lines": text.count("\n")}


def timed(variant: Variant, text: str) -> float:
    began_s = time.perf_counter()
    argv = [f"iptables-{variant}-restore", "-w", "5", "--noflush", "--counters"]
    subprocess.run(argv, input=text, text=True, check=True, timeout=WITHIN_S)
    return time.perf_counter() - began_s


async def sync(variant: Variant, size: int) -> dict[str, float]:
    """The plane: everything, then one endpoint at a time."""
    intake, plane, told = filled(size, variant)
    family = plane.families["IPv4"]
    began_s = time.perf_counter()
    with large_work():
        await family.sync()
    first_s = time.perf_counter() - began_s
    settle_memory()
    if not family.is_synced:
        raise NftFailed("the first sync failed")
    changes, alone = [], []
    for change in range(CHANGES):
        number = change * 7919 % size + 1
        put(intake, number, [*addresses(number)[1:], f"10.250.{change}.1"])
        began_s = time.perf_counter()
        await family.sync()
        changes.append((time.perf_counter() - began_s) * 1000)
        # The same chains once more: what the program takes without us.
        alone.append(timed(variant, restore_text(RulesChange(told.change.chains))) * 1000)
    return {"sync_s": first_s, "change_ms": statistics.median(changes), "alone_ms": statistics.median(alone)}


def inside(work: str, variant: str, size: int) -> dict[str, float]:
    os.chdir(Path(__file__).resolve().parent.parent)
    with Namespace() as space:
        argv = (sys.executable, "-m", "bench.services_iptables", work, variant, str(size))
        printed = space.run(*argv, within_s=WITHIN_S)
    return json.loads(printed.splitlines()[-1])  # type: ignore[no-any-return]


def measure(size: int = SIZE) -> Iterator[Row]:
    for variant in ("nft", "legacy"):
        base, ours = inside("restore", variant, size), inside("sync", variant, size)
        what = f"iptables-{variant}, {size} Services x {ENDPOINTS}"
        ratio = ours["change_ms"] / ours["alone_ms"]
        yield from (
            (f"{what}: one iptables-restore of {base['lines']:.0f} lines", base["restore_s"], "s", ""),
            (f"{what}: first sync", ours["sync_s"], "s", ""),
            (f"{what}: first sync against the restore", ours["sync_s"] / base["restore_s"], "×", "≤ 1.2"),
            (f"{what}: one endpoint replaced", ours["change_ms"], "ms p50", "≤ 150" if variant == "nft" else ""),
            (f"{what}: the same against a restore of these chains", ratio, "×", "≤ 1.2" if variant == "legacy" else ""),
        )


if __name__ == "__main__":
    chosen = {"restore": restore, "sync": sync}[sys.argv[1]]
    print(json.dumps(asyncio.run(chosen("legacy" if sys.argv[2] == "legacy" else "nft", int(sys.argv[3])))))
