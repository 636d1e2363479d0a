# SPDX-License-Identifier: Apache-2.0
"""What makes a bare node ready, from facts about it: steps in their order, what stands in their way, and what to know.

Never: touches the node. A fact that already holds has no step, so a second plan is empty.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from agent.host.setup.contents import BASE_CONFIGURATION, DOOR_LINE, cni_list, drop_in, free_service_range, free_subnet

CONFIGURATION = "/etc/kepd/config.yaml"
DROP_IN = "/etc/kepd/config.d/00-node.yaml"
CNI_FOLDER = "/etc/cni/net.d"
CNI_LIST = f"{CNI_FOLDER}/10-kepd.conflist"
UNIT_FOLDER = "/etc/systemd/system/kepd.service.d"
LOCKS = "/run/kepd-locks"
GROUP, ROOT = "kepd", "root"
# As tmpfiles.conf and kepd.service have them.
FOLDERS = (
    ("/etc/kepd", 0o750, GROUP, "configuration"),
    ("/etc/kepd/manifests", 0o750, ROOT, "manifests of pods and Services"),
    ("/etc/kepd/services", 0o750, GROUP, "manifests of kepd-services"),
    ("/etc/kepd/config.d", 0o750, GROUP, "drop-ins of the configuration"),
    ("/var/lib/kepd", 0o700, ROOT, "state that survives a reboot"),
)
FRAGMENTS = ("pods.conf", "services.conf")
WRITTEN = (CONFIGURATION, DROP_IN, CNI_LIST, *(f"{UNIT_FOLDER}/{name}" for name in FRAGMENTS))
PLACES = (*(path for path, *_ in FOLDERS), *WRITTEN, LOCKS)
UNITS = ("kepd.socket", "kepd")
NAME_UNITS = ("kepd-dns.socket", "kepd-dns.service")
NEXT = ("systemctl daemon-reload", f"systemctl enable --now {' '.join(UNITS)}", "kepctl doctor")
NEXT_WHEN_STARTED = ("kepctl doctor",)


class SetupFindings(msgspec.Struct, frozen=True):
    """What is at a place. Of a thing that kepd does not write over, `what` says what it is and where."""

    kind: Literal["absent", "file", "folder", "obstacle"] = "absent"
    content: bytes = b""
    what: str = ""


ABSENT = SetupFindings()


class MakeFolder(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    why: str
    mode: int
    group: str
    is_replacing: bool = False


class WriteFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    why: str
    mode: int
    group: str
    content: bytes
    before: SetupFindings = ABSENT

    @property
    def is_replacing(self) -> bool:
        return self.before.kind != "absent"


class RunProgram(msgspec.Struct, frozen=True, kw_only=True):
    words: tuple[str, ...]
    why: str
    is_replacing: bool = False


Step = MakeFolder | WriteFile | RunProgram


class NodeFound(msgspec.Struct, frozen=True, kw_only=True):
    """`given` are keys that other files of the configuration decide, `service_ranges` is what ours says already;
    `networks` is what addresses of pods and Services must avoid."""

    found: Mapping[str, SetupFindings] = {}
    cni_names: tuple[str, ...] = ()
    cni_subnets: tuple[str, ...] = ()
    cni_faults: tuple[str, ...] = ()
    missing_plugins: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    service_ranges: tuple[str, ...] = ()
    given: Mapping[str, object] = {}
    configuration_faults: tuple[str, ...] = ()
    fragments: Mapping[str, bytes] = {}
    has_group: bool = True
    has_overlay: bool = True
    has_bridge_filter: bool = True
    is_forwarding: bool = True
    kubelet: str = ""
    is_with_door: bool = False
    """Asked for: kubectl and others come in by it."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """With an obstacle nothing is to be done, not even the rest."""

    steps: tuple[Step, ...] = ()
    obstacles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def plan_setup(facts: NodeFound) -> Plan:
    obstacles = tuple(_obstacles(facts))
    if obstacles:
        return Plan(obstacles=obstacles)
    return Plan(steps=tuple(_steps(facts)), notes=tuple(_notes(facts)))


def has_names(facts: NodeFound) -> bool:
    """Whether names are answered here: setup switches them on where nothing else decides."""
    is_asked = facts.given.get("dns.enabled", not facts.given.get("kubernetes.kubeconfig"))
    return _has(facts, "services") and bool(is_asked)


def starts(plan: Plan, *, with_names: bool = False) -> tuple[RunProgram, ...]:
    """What comes after its steps where kepd is to run. One that runs must see what they changed; its pods run on.
    `with_names`: they are answered here, by a process with units of its own."""
    why = "kepd runs now, and after each start of this node"
    begun = "restart" if plan.steps else "start"
    names: tuple[RunProgram, ...] = ()
    if with_names:
        names = (RunProgram(words=("systemctl", "enable", "--now", *NAME_UNITS), why="names of Services are answered"),)
    return (
        RunProgram(words=("systemctl", "daemon-reload"), why="systemd reads the drop-ins of the unit"),
        *names,
        RunProgram(words=("systemctl", "enable", *UNITS), why=why),
        RunProgram(words=("systemctl", "start", "kepd.socket"), why="its clients wait there until it answers"),
        RunProgram(words=("systemctl", begun, "kepd"), why="its planes begin their work"),
    )


def _obstacles(facts: NodeFound) -> Iterator[str]:
    if facts.kubelet:
        yield (
            f"{facts.kubelet} shows a kubelet, which runs the pods of this node; expected a bare node: beside a "
            "kubelet, docs/cri-proxy.md has the steps"
        )
    for fault in facts.configuration_faults:
        yield f"{fault}; mend the configuration first (kepd config check)"
    folders = {path for path, *_ in FOLDERS} | {LOCKS}
    for path in PLACES:
        found = facts.found.get(path, ABSENT)
        wanted = "folder" if path in folders else "file"
        if path == CNI_LIST and facts.cni_names:
            continue
        if found.kind == "obstacle":
            yield f"{found.what}; expected a {wanted} at {path}: look what it is for, and move it away"
        elif found.kind not in ("absent", wanted):
            yield f"{path} is a {found.kind}; expected a {wanted}: look what it is for, and move it away"
    if not facts.cni_names and free_subnet(facts.networks) is None:
        yield (
            f"routes of this node cover every range that pods could have; expected a list of CNI in {CNI_FOLDER}: "
            "write one with a subnet of your own"
        )


def _steps(facts: NodeFound) -> Iterator[Step]:
    if not facts.has_group:
        yield RunProgram(words=("systemd-sysusers", "kepd.conf"), why="group kepd may read the API")
    for path, mode, group, why in FOLDERS:
        if facts.found.get(path, ABSENT).kind == "absent":
            yield MakeFolder(path=path, mode=mode, group=group, why=why)
    # It gives what an installation made before there was a group to that group, too.
    if not facts.has_group or facts.found.get(LOCKS, ABSENT).kind == "absent":
        yield RunProgram(
            words=("systemd-tmpfiles", "--create", "kepd.conf"), why="directories below /run, and whose each is"
        )
    yield from _kernel(facts)
    subnets = facts.cni_subnets
    if not facts.cni_names:
        subnet = free_subnet(facts.networks) or ""
        subnets = (subnet,)
        yield WriteFile(path=CNI_LIST, mode=0o644, group=ROOT, content=cni_list(subnet), why="a network for pods")
    yield from _configuration(facts, subnets)
    yield from _unit_drop_ins(facts)


def _kernel(facts: NodeFound) -> Iterator[Step]:
    if _has(facts, "pods") and not facts.has_overlay:
        yield RunProgram(words=("modprobe", "overlay"), why="images cannot be unpacked without it")
    if not facts.has_bridge_filter:
        why = "a pod reaches a Service whose endpoint is on the same bridge"
        yield RunProgram(words=("modprobe", "br_netfilter"), why=why)
    if not facts.is_forwarding:
        words = ("sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        yield RunProgram(words=words, why="pods reach what is outside of this node", is_replacing=True)


def _configuration(facts: NodeFound, subnets: tuple[str, ...]) -> Iterator[Step]:
    if facts.found.get(CONFIGURATION, ABSENT).kind == "absent":
        yield _conf(CONFIGURATION, BASE_CONFIGURATION, "the configuration that the unit names")
    given = facts.given
    # With a cluster its ServiceCIDR objects say it.
    is_decided = "services.serviceCIDRs" in given or bool(given.get("kubernetes.kubeconfig"))
    has_services = _has(facts, "services")
    before = facts.found.get(DROP_IN, ABSENT)
    text = drop_in(
        service_ranges=_service_ranges(facts, subnets) if has_services and not is_decided else (),
        subnets=subnets if has_services and "services.detectLocal.clusterCIDRs" not in given else (),
        is_with_pods="pods.enabled" not in given,
        is_with_names=has_services and "dns.enabled" not in given and not given.get("kubernetes.kubeconfig"),
        # What was opened once stays open.
        is_with_door="api.door.address" not in given and (facts.is_with_door or DOOR_LINE.encode() in before.content),
    )
    if text and before.content != text:
        yield _conf(DROP_IN, text, "pods, their network, and one for addresses of Services", before)


def _service_ranges(facts: NodeFound, subnets: tuple[str, ...]) -> tuple[str, ...]:
    """What was chosen once stays, whatever routes came since: Services have their addresses there."""
    if facts.service_ranges:
        return facts.service_ranges
    found = free_service_range((*facts.networks, *subnets))
    return () if found is None else (found,)


def _conf(path: str, content: bytes, why: str, before: SetupFindings = ABSENT) -> WriteFile:
    return WriteFile(path=path, mode=0o640, group=GROUP, content=content, why=why, before=before)


def _unit_drop_ins(facts: NodeFound) -> Iterator[Step]:
    """A process that runs pods needs rights that its unit takes away; beside pods, Services need theirs back."""
    if not _has(facts, "pods"):
        return
    for name in FRAGMENTS:
        path, content = f"{UNIT_FOLDER}/{name}", facts.fragments.get(name)
        before = facts.found.get(path, ABSENT)
        plane = name.removesuffix(".conf")
        if content is not None and before.content != content and _has(facts, plane):
            why = f"rights that the {plane} plane needs"
            yield WriteFile(path=path, mode=0o644, group=ROOT, content=content, why=why, before=before)


def _has(facts: NodeFound, plane: str) -> bool:
    return facts.given.get(f"{plane}.enabled", True) is not False


def _notes(facts: NodeFound) -> Iterator[str]:
    yield from facts.cni_faults
    if facts.missing_plugins:
        names = ", ".join(facts.missing_plugins)
        yield f"CNI plugins {names} are not installed: pods get no network (apt install containernetworking-plugins)"
    if not facts.addresses and "node.addresses" not in facts.given:
        yield "this node has no default route: Services have no node ports until node.addresses names its addresses"
    lost = [name for name in FRAGMENTS if name not in facts.fragments and _has(facts, name.removesuffix(".conf"))]
    lost = [name for name in lost if facts.found.get(f"{UNIT_FOLDER}/{name}", ABSENT).kind == "absent"]
    if lost and _has(facts, "pods"):
        yield (
            f"{' and '.join(lost)} not found where an installation has them: copy them from systemd/kepd.service.d "
            f"to {UNIT_FOLDER}, or the unit has no rights for pods"
        )
