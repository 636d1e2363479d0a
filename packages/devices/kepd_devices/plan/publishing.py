# SPDX-License-Identifier: Apache-2.0
"""Which slices of a driver are written to an API server, and which are taken away."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from kepd_devices.manifest.objects import Slice

API_VERSION, KIND = "resource.k8s.io/v1", "ResourceSlice"


class Publication(msgspec.Struct, frozen=True):
    """All that is written is written before anything is deleted: no device is missing meanwhile."""

    writes: tuple[Slice, ...] = ()
    deletes: tuple[str, ...] = ()


def publication(wanted: Sequence[Slice], there: Sequence[Slice]) -> Publication:
    """`there` are those of this driver and node. A pool that changes gets a higher generation as a whole."""
    known = {one.metadata.name: one for one in there}
    names = {one.metadata.name for one in wanted}
    generations = {one.spec.pool.generation for one in there}
    if len(generations) <= 1 and known.keys() == names and all(_same(one, known[one.metadata.name]) for one in wanted):
        return Publication()
    generation = max(generations, default=0) + 1
    writes = tuple(_with_generation(one, generation) for one in wanted)
    return Publication(writes, tuple(sorted(known.keys() - names)))


def _same(one: Slice, other: Slice) -> bool:
    return _comparable(one) == _comparable(other)


def _comparable(one: Slice) -> object:
    """Without what the API server or this planner adds."""
    devices = tuple(
        replace(device, taints=tuple(replace(taint, time_added=None) for taint in device.taints))
        for device in one.spec.devices or ()
    )
    return replace(_with_generation(one, 0).spec, devices=devices)


def _with_generation(one: Slice, generation: int) -> Slice:
    return replace(one, spec=replace(one.spec, pool=replace(one.spec.pool, generation=generation)))


def document(one: Slice, node_uid: str) -> dict[str, Any]:
    """As it is created; it goes with its node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": one.spec.node_name, "uid": node_uid, "controller": True}
    metadata: dict[str, Any] = {"name": one.metadata.name}
    if node_uid:
        metadata["ownerReferences"] = [owner]
    spec = without_empty(msgspec.to_builtins(one.spec))
    spec.setdefault("devices", [])
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def without_empty(value: Any) -> Any:  # noqa: ANN401  # a document
    if isinstance(value, Mapping):
        made = {key: without_empty(one) for key, one in value.items()}
        return {key: one for key, one in made.items() if one not in (None, {}, []) and one != ""}
    if isinstance(value, list | tuple):
        return [without_empty(one) for one in value]
    return value
