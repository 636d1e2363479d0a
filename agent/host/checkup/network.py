# SPDX-License-Identifier: Apache-2.0
"""The pod network as its files show it: the list that is in force, and what pods that are gone have left. Blocking.

Never: changes anything. What could be mended is told with the command that does it.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from agent.model.finding import Advice

LISTS, PLUGINS = Path("etc/cni/net.d"), Path("opt/cni/bin")
# Where the runtime looks is its own configuration: CNI's place, Debian's, Fedora's.
PLUGIN_FOLDERS = (PLUGINS, Path("usr/lib/cni"), Path("usr/libexec/cni"))
LEASES, RESULTS = Path("var/lib/cni/networks"), Path("var/lib/cni/results")
NAMESPACES = Path("run/netns")
OURS = "cni-"
ID_SIGNS = 64
MOST_NAMED = 10


def list_advice(root: Path, lists: str = "", plugin_folder: str = "") -> Iterator[Advice]:
    """The first list of the folder is in force, as for the runtime, which looks in `lists` and `plugin_folder`."""
    folder = Path(lists.lstrip("/")) if lists else LISTS
    found = sorted((root / folder).glob("*.conflist"))
    if not found:
        yield Advice(
            subject="pod network", found="no list of CNI", wanted=f"a .conflist in /{folder}",
            text="pods get no network, and wait for it; only those with hostNetwork begin",
            mend=f"kepd setup writes one with bridge and portmap into /{LISTS}; install the plugins into /{PLUGINS}"
            if folder == LISTS
            else f"put one with bridge and portmap into /{folder}, where the runtime looks",
        )  # fmt: skip
        return
    path = found[0]
    shown = f"/{path.relative_to(root)}"
    plugins = _plugins(path)
    if plugins is None:
        yield Advice(
            subject=shown, found="unreadable", wanted="JSON with a list of plugins", text="pods get no network",
            mend=f"mend the file: python3 -m json.tool {shown}",
        )  # fmt: skip
        return
    places = (Path(plugin_folder.lstrip("/")),) if plugin_folder else PLUGIN_FOLDERS
    yield from _plugin_advice(root, shown, plugins, places)


def _plugins(path: Path) -> list[Mapping[str, object]] | None:
    try:
        read = json.loads(path.read_bytes())
        listed = read["plugins"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else None


def _plugin_advice(
    root: Path, shown: str, plugins: list[Mapping[str, object]], places: Collection[Path]
) -> Iterator[Advice]:
    types = [str(one.get("type", "")) for one in plugins]
    if "portmap" not in types and "cilium-cni" not in types and "calico" not in types:
        yield Advice(
            subject=shown, found="without portmap", wanted="portmap after the first plugin",
            text="hostPort of pods answers nowhere",
            mend='add {"type": "portmap", "capabilities": {"portMappings": true}} to its plugins',
        )  # fmt: skip
    for one in plugins:
        if one.get("type") == "bridge" and one.get("hairpinMode") is not True:
            yield Advice(
                subject=shown, found="bridge without hairpinMode", wanted='"hairpinMode": true',
                text="a pod does not reach itself by the address of its own Service",
                mend='add "hairpinMode": true to the bridge, and restart the pods',
            )  # fmt: skip
    inner = [str(ipam.get("type", "")) for one in plugins if isinstance(ipam := one.get("ipam"), dict)]
    for name in dict.fromkeys((*types, *inner)):
        if name and "/" not in name and not any((root / folder / name).exists() for folder in places):
            yield Advice(
                subject=f"CNI plugin {name}", found="in none of the usual folders", wanted="installed",
                text=f"pods get no network: {shown} names it",
                mend=f"install {name} into /{next(iter(places))}, or where the runtime looks for it",
                is_note=not any((root / folder).is_dir() for folder in places),
            )  # fmt: skip


def leak_advice(root: Path, sandboxes: Collection[str]) -> Iterator[Advice]:
    """`sandboxes` are the ids of all that the runtime has."""
    leases = [path for path, holder in _leases(root / LEASES) if holder not in sandboxes]
    if leases:
        shown = [f"/{path.relative_to(root)}" for path in leases]
        yield Advice(
            subject="CNI leases", found=f"{len(leases)} of pods that are gone", wanted="0",
            text="each keeps an address from new pods", mend=f"rm {_few(shown)}",
        )  # fmt: skip
    spaces = _leaked_spaces(root, sandboxes)
    if spaces:
        yield Advice(
            subject="network namespaces", found=f"{len(spaces)} of pods that are gone", wanted="0",
            text="each keeps memory and interfaces",
            mend=f"for each of {_few(spaces)}: ip netns delete NAME",
        )  # fmt: skip


def holders(root: Path) -> frozenset[str]:
    """Ids of sandboxes that have a lease or a result of CNI."""
    named = {holder for _, holder in _leases(root / LEASES)}
    return frozenset(named | {holder for holder, _ in _results(root)})


def _few(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return " ".join(names[:MOST_NAMED]) + more


def _leases(folder: Path) -> Iterator[tuple[Path, str]]:
    """host-local: a file for each address, whose first line is the sandbox."""
    for path in sorted(folder.glob("*/*")):
        with suppress(OSError, ValueError):
            if path.is_file() and (path.name[0].isdecimal() or ":" in path.name):
                holder = path.read_text().splitlines()[0].strip() if path.stat().st_size else ""
                if len(holder) == ID_SIGNS:
                    yield path, holder


def _leaked_spaces(root: Path, sandboxes: Collection[str]) -> list[str]:
    """Those that a result names and whose sandbox is gone. Nothing tells whose the others are."""
    kept: set[str] = set()
    gone: set[str] = set()
    for holder, name in _results(root):
        (kept if holder in sandboxes else gone).add(name)
    there = {path.name for path in (root / NAMESPACES).glob(f"{OURS}*")}
    return sorted(there & gone - kept)


def _results(root: Path) -> Iterator[tuple[str, str]]:
    """The sandbox of each, and the name of its network namespace."""
    for path in sorted((root / RESULTS).glob("*")):
        with suppress(OSError, ValueError, RecursionError, AttributeError):
            read = json.loads(path.read_bytes())
            yield str(read.get("containerId", "")), Path(str(read.get("netns", ""))).name
