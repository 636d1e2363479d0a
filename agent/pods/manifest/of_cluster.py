# SPDX-License-Identifier: Apache-2.0
"""What the API server of a cluster put into an object that was read from there, and what no node without one can carry
out: the token of a pod's account, and the selector that a Job got. It is left out, and told."""

from collections.abc import Iterator

from msgspec.structs import replace

from agent.config.strict_yaml import Tree

TOKENS = "kube-api-access-"
OWNER_LABELS = frozenset({"controller-uid", "batch.kubernetes.io/controller-uid"})
LEFT_OUT = "is left out: it has the token of an account of the cluster that the pod was read from"


def without_tokens(tree: Tree) -> Tree:
    """A pod's document without the volume that every pod of a cluster gets."""
    spec = tree.entries.get("spec")
    names = set(token_volumes(tree))
    if spec is None or not names:
        return tree
    entries = dict(spec.entries)
    entries["volumes"] = _without(spec.entries["volumes"], names)
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        if kind in entries:
            containers = [_bare(container, names) for container in entries[kind].items]
            entries[kind] = replace(entries[kind], items=containers)
    return _with(tree, "spec", replace(spec, entries=entries))


def token_volumes(tree: Tree) -> Iterator[str]:
    spec = tree.entries.get("spec")
    volumes = spec.entries.get("volumes") if spec is not None else None
    for volume in volumes.items if volumes is not None else ():
        if (name := _name(volume)).startswith(TOKENS) and "projected" in volume.entries:
            yield name


def without_own_selector(tree: Tree) -> Tree:
    """A Job's document without the selector that is made of its uid."""
    spec = tree.entries.get("spec")
    selector = spec.entries.get("selector") if spec is not None else None
    labels = selector.entries.get("matchLabels") if selector is not None else None
    if spec is None or selector is None or labels is None or len(selector.entries) > 1:
        return tree
    if not labels.entries or not labels.entries.keys() <= OWNER_LABELS:
        return tree
    rest = {name: entry for name, entry in spec.entries.items() if name != "selector"}
    return _with(tree, "spec", replace(spec, entries=rest))


def _bare(container: Tree, names: set[str]) -> Tree:
    mounts = container.entries.get("volumeMounts")
    return container if mounts is None else _with(container, "volumeMounts", _without(mounts, names))


def _without(listed: Tree, names: set[str]) -> Tree:
    return replace(listed, items=[item for item in listed.items if _name(item) not in names])


def _name(tree: Tree) -> str:
    name = tree.entries.get("name")
    return str(name.scalar) if name is not None else ""


def _with(tree: Tree, name: str, child: Tree) -> Tree:
    return replace(tree, entries={**tree.entries, name: child})
