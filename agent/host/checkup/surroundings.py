# SPDX-License-Identifier: Apache-2.0
"""The node around kepd, looked at when `kepctl doctor` asks: time, disk, kernel, units, pause image, pod network.

Never: changes anything, and never fails; what cannot be looked at is not complained about.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.host.checkup.kubelet_port import open_kubelet_advice
from agent.host.checkup.network import holders, leak_advice, list_advice
from agent.model.finding import Advice
from agent.model.runtime.error import RuntimeCallFailed

if TYPE_CHECKING:
    from agent.drivers.cri.driver import CriRuntime

LEAST_FREE = 0.10
TIME_ERROR = 5
SECOND_LOOK_S = 2.0
TIMEX_BYTES = 512
UNIT_FOLDERS = ("etc/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
UNITS = ("kepd", "kepd-cri", "kepd-services")
FORWARDING = "proc/sys/net/ipv4/ip_forward"
BRIDGED = "proc/sys/net/bridge/bridge-nf-call-iptables"


class CheckScope(msgspec.Struct, frozen=True, kw_only=True):
    """What this kepd sees to, and so looks at. `folders` are written to."""

    has_pods: bool = False
    has_services: bool = False
    folders: tuple[Path, ...] = ()


class Surroundings:
    def __init__(
        self,
        runtime: "CriRuntime | None",
        scope: CheckScope,
        root: Path = Path("/"),
        clock_state: Callable[[], int] | None = None,
    ) -> None:
        self._runtime = runtime
        self._scope = scope
        self._root = root
        self._clock_state = clock_state or kernel_clock_state

    async def advice(self) -> Sequence[Advice]:
        folders = ("", "")
        of_runtime: list[Advice] = []
        if self._scope.has_pods and self._runtime is not None:
            with suppress(RuntimeCallFailed):
                folders = await self._runtime.cni_folders()
                of_runtime = await self._of_runtime(self._runtime)
        found = await asyncio.to_thread(lambda: list(self._node(*folders)))
        # Pods and Services may want the same, for reasons of their own: the first is enough.
        return list({(one.subject, one.found): one for one in reversed((*found, *of_runtime))}.values())[::-1]

    async def _of_runtime(self, runtime: "CriRuntime") -> list[Advice]:
        found = await self._leaks(runtime)
        image = await runtime.sandbox_image()
        if image and await runtime.image_status(image) is None:
            found.append(_pause_advice(image))
        return found

    async def _leaks(self, runtime: "CriRuntime") -> list[Advice]:
        """A sandbox that is being made has its lease before the runtime lists it, so whatever looks leaked is looked at
        again, and what came in between is left out."""
        held = await asyncio.to_thread(holders, self._root)
        if not held:
            return []
        sandboxes = frozenset(one.id for one in await runtime.list_sandboxes())
        if not await asyncio.to_thread(lambda: list(leak_advice(self._root, sandboxes))):
            return []
        await asyncio.sleep(SECOND_LOOK_S)
        sandboxes = frozenset(one.id for one in await runtime.list_sandboxes())
        new = await asyncio.to_thread(holders, self._root) - held
        return await asyncio.to_thread(lambda: list(leak_advice(self._root, sandboxes | new)))

    def _node(self, lists: str, plugins: str) -> Iterator[Advice]:
        if self._scope.has_pods:
            # Elsewhere a kubelet sees to the node, and kepd may see no more of it than its own container.
            yield from self._time()
            yield from disk_advice(self._scope.folders)
            yield from self._units()
            yield from list_advice(self._root, lists, plugins)
            yield from self._kernel_of_pods()
        if self._scope.has_services:
            yield from self._kernel_of_services()
        yield from open_kubelet_advice()

    def _time(self) -> Iterator[Advice]:
        if self._clock_state() == TIME_ERROR:
            yield Advice(
                subject="clock", found="not synchronised", wanted="synchronised",
                text="certificates of registries and of the API server may count as not valid yet, or no more",
                mend="systemctl enable --now systemd-timesyncd (or chrony)",
            )  # fmt: skip

    def _units(self) -> Iterator[Advice]:
        folders = [self._root / one for one in UNIT_FOLDERS]
        units = [
            f"{name}.service" for name in UNITS if any((folder / f"{name}.service").exists() for folder in folders)
        ]
        # Of the three a node has those that it needs, and which these are its administrator knows.
        if units and not any(list(folder.glob(f"*.wants/{unit}")) for unit in units for folder in folders):
            yield Advice(
                subject=units[0], found="not enabled", wanted="enabled if it is to run",
                text="nothing of kepd begins after a reboot", mend=f"systemctl enable --now {units[0]}", is_note=True,
            )  # fmt: skip
        if units and not any(
            (folder / "containerd.service").exists() or (folder / "crio.service").exists() for folder in folders
        ):
            yield Advice(
                subject="container runtime", found="no unit of one", wanted="containerd.service or crio.service",
                text="nothing starts the runtime after a reboot", mend="apt install containerd", is_note=True,
            )  # fmt: skip

    def _kernel_of_pods(self) -> Iterator[Advice]:
        systems = self._text("proc/filesystems")
        if systems and "overlay" not in systems.split():
            yield _module("overlay", "images cannot be unpacked")
        if self._text(FORWARDING) == "0":
            yield _setting("net.ipv4.ip_forward", "pods reach nothing outside of this node")

    def _kernel_of_services(self) -> Iterator[Advice]:
        if self._text(FORWARDING) == "0":
            yield _setting("net.ipv4.ip_forward", "what a Service answers from a pod is not forwarded")
        if self._text(BRIDGED) == "0":
            text = "a pod does not reach a Service whose endpoint is a pod on the same bridge"
            yield _setting("net.bridge.bridge-nf-call-iptables", text)
        elif not (self._root / BRIDGED).exists() and list((self._root / "sys/class/net").glob("*/bridge")):
            yield _module("br_netfilter", "a pod does not reach a Service whose endpoint is a pod on the same bridge")

    def _text(self, place: str) -> str:
        with suppress(OSError):
            return (self._root / place).read_text().strip()
        return ""


def _pause_advice(image: str) -> Advice:
    return Advice(
        subject="pause image", found=f"{image} is not here", wanted="pulled",
        text="the first pod waits for it, and none begins if its registry is away", mend=f"kepctl pull {image}",
    )  # fmt: skip


def _module(name: str, text: str) -> Advice:
    mend = f"modprobe {name}; echo {name} > /etc/modules-load.d/{name}.conf"
    return Advice(subject=f"kernel module {name}", found="not loaded", wanted="loaded", text=text, mend=mend)


def _setting(name: str, text: str) -> Advice:
    mend = f"sysctl -w {name}=1; echo {name}=1 > /etc/sysctl.d/90-kepd.conf"
    return Advice(subject=name, found="0", wanted="1", text=text, mend=mend)


def disk_advice(folders: Collection[Path]) -> Iterator[Advice]:
    """Each file system once."""
    seen: set[int] = set()
    for folder in folders:
        with suppress(OSError):
            there = next(place for place in (folder, *folder.parents) if place.exists())
            device, told = there.stat().st_dev, os.statvfs(there)
            if device in seen:
                continue
            seen.add(device)
            for what, free, whole in (
                ("space", told.f_bavail, told.f_blocks), ("inodes", told.f_favail, told.f_files)
            ):  # fmt: skip
                if whole and free < whole * LEAST_FREE:
                    yield Advice(
                        subject=f"disk of {folder}", found=f"{free * 100 // whole} % of its {what} free",
                        wanted=f"{LEAST_FREE:.0%}".replace("%", " %"),
                        text="pulls, logs and volumes fail when it is full", mend="kepctl gc --now",
                    )  # fmt: skip


def kernel_clock_state() -> int:
    """As adjtimex answers to who only asks; 0 where it cannot be asked."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        return int(library.adjtimex(ctypes.create_string_buffer(TIMEX_BYTES)))
    except (OSError, AttributeError):
        return 0
