# SPDX-License-Identifier: Apache-2.0
"""The facts that a plan begins with, from a node's files and its default routes. Blocking.

Never: changes anything. What cannot be read counts as what needs no step.
"""

import grp
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path

from agent.config.sources import Sources, read
from agent.drivers.interfaces.default_route import default_addresses
from agent.host.checkup.network import PLUGIN_FOLDERS, list_advice
from agent.host.setup.node_files import NodeFiles
from agent.host.setup.plan import CNI_FOLDER, CONFIGURATION, DROP_IN, FRAGMENTS, GROUP, PLACES, NodeFound

PLUGINS = ("bridge", "host-local", "portmap")
# All that a runtime takes for a network.
NETWORK_ENDINGS = (".conflist", ".conf", ".json")
KUBELET = ("/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/config.yaml")
MOST_BYTES = 1 << 20


def node_addresses() -> tuple[str, ...]:
    return tuple(str(ip_address(one)) for one in default_addresses())


def has_group() -> bool:
    with suppress(KeyError):
        return bool(grp.getgrnam(GROUP))
    return False


def look(
    root: Path = Path("/"),
    addresses: Callable[[], tuple[str, ...]] = node_addresses,
    is_group_there: Callable[[], bool] = has_group,
) -> NodeFound:
    files = NodeFiles(root)
    names = tuple(name for name in files.names(CNI_FOLDER) if name.endswith(NETWORK_ENDINGS))
    given, ranges, faults = _given(root)
    systems = _text(root, "proc/filesystems").split()
    own = addresses()
    return NodeFound(
        found={path: files.found(path) for path in PLACES},
        cni_names=names,
        cni_subnets=tuple(_subnets(root, names)),
        cni_faults=tuple(f"{one.subject}: {one.found}; {one.text}: {one.mend}" for one in list_advice(root))
        if any(name.endswith(".conflist") for name in names)
        else (),
        missing_plugins=() if names else tuple(_missing_plugins(root)),
        networks=(*_routes(_text(root, "proc/net/route")), *_resolvers(_text(root, "etc/resolv.conf")), *own),
        addresses=own,
        service_ranges=ranges,
        given=given,
        configuration_faults=faults,
        fragments=_fragments(root),
        has_group=is_group_there(),
        has_overlay=not systems or "overlay" in systems,
        has_bridge_filter=(root / "proc/sys/net/bridge").exists(),
        is_forwarding=_text(root, "proc/sys/net/ipv4/ip_forward").strip() != "0",
        kubelet=next((path for path in KUBELET if (root / path[1:]).exists()), ""),
    )


def _text(root: Path, place: str) -> str:
    with suppress(OSError), (root / place).open("rb") as source:
        return source.read(MOST_BYTES).decode(errors="replace")
    return ""


def _given(root: Path) -> tuple[Mapping[str, object], tuple[str, ...], tuple[str, ...]]:
    """Keys that others decide: of the main file not whether pods run, for it is shipped without, and none of ours; but
    of ours the range that Services have their addresses from."""
    main, ours = root / CONFIGURATION[1:], root / DROP_IN[1:]
    loaded = read(Sources(file=main, environment={}))
    given: dict[str, object] = {}
    ranges: tuple[str, ...] = ()
    for layer in loaded.layers:
        for key, tree in layer.items():
            is_shipped = key == "pods.enabled" and tree.where.startswith(f"{main}:")
            is_ours = tree.where.startswith(f"{ours}:")
            if is_ours and key == "services.serviceCIDRs":
                ranges = tuple(str(one.scalar) for one in tree.items)
            if not is_shipped and not is_ours:
                given[key] = tree.scalar if tree.kind == "scalar" else True
    faults = tuple(str(one) for one in loaded.findings if one.where != str(main) or main.exists())
    return given, ranges, faults


def _subnets(root: Path, names: tuple[str, ...]) -> Iterator[str]:
    """Of the list in force, as host-local has them."""
    with suppress(ValueError, RecursionError, KeyError, TypeError, AttributeError):
        for plugin in json.loads(_text(root, f"{CNI_FOLDER[1:]}/{names[0]}" if names else ""))["plugins"]:
            ipam = plugin.get("ipam", {})
            ranges = [part for one in ipam.get("ranges", []) for part in one]
            for text in (ipam.get("subnet"), *(part.get("subnet") for part in ranges)):
                if isinstance(text, str):
                    yield str(ip_network(text, strict=False))


def _missing_plugins(root: Path) -> Iterator[str]:
    for name in PLUGINS:
        if not any((root / folder / name).exists() for folder in PLUGIN_FOLDERS):
            yield name


def _routes(table: str) -> Iterator[str]:
    """The kernel writes destination and mask as numbers of this machine's byte order."""
    for line in table.splitlines()[1:]:
        with suppress(ValueError, IndexError):
            words = line.split()
            destination, mask = (
                IPv4Address(int(words[place], 16).to_bytes(4, sys.byteorder)) for place in (1, 7)
            )  # fmt: skip
            yield str(ip_network(f"{destination}/{mask}", strict=False))


def _resolvers(text: str) -> Iterator[str]:
    """Name servers behind the default route: a pod network over them would hide them."""
    for line in text.splitlines():
        with suppress(ValueError, IndexError):
            words = line.split()
            if words[0] == "nameserver":
                yield str(ip_address(words[1].partition("%")[0]))


def _fragments(root: Path) -> Mapping[str, bytes]:
    """Of an installation with `make install`, or of the package."""
    found: dict[str, bytes] = {}
    for folder in ("usr/share/kepd/systemd", f"{sys.prefix[1:]}/share/systemd"):
        for name in FRAGMENTS:
            with suppress(OSError):
                found[name] = (root / folder / name).read_bytes()
    return found
