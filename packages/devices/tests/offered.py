# SPDX-License-Identifier: Apache-2.0
"""Claims, classes and slices for tests, as short as a test wants them."""

from typing import Any

import msgspec

from kepd_devices.manifest.objects import Claim, DeviceClass, Slice
from kepd_devices.plan.pools import PoolNode
from kepd_devices.plan.search import Question

NODE = PoolNode(name="here", labels={"zone": "z1"})
DRIVER = "gpu.example.com"


def device(name: str, *, capacity: dict[str, Any] | None = None, **attributes: Any) -> dict[str, Any]:
    kinds = {bool: "bool", int: "int", str: "string"}
    found = {key: {kinds[type(value)]: value} for key, value in attributes.items()}
    return {"name": name, "attributes": found, "capacity": capacity or {}}


def slice_of(*devices: dict[str, Any], pool: str = "here", driver: str = DRIVER, **spec: Any) -> Slice:
    given = {
        "metadata": {"name": f"{driver}-{pool}"},
        "spec": {
            "driver": driver, "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}, "nodeName": "here",
            "devices": devices, **spec,
        },
    }  # fmt: skip
    return msgspec.convert(given, Slice)


def slice_at(generation: int, place: int = 0, count: int = 1, pool: str = "here") -> Slice:
    """One of `count` of a pool, at that generation."""
    found = slice_of(device(f"gpu-{place}"), pool=pool)
    names = msgspec.structs.replace(found.metadata, name=f"s{place}")
    of_pool = msgspec.structs.replace(found.spec.pool, generation=generation, resource_slice_count=count)
    return msgspec.structs.replace(found, metadata=names, spec=msgspec.structs.replace(found.spec, pool=of_pool))


def selector(expression: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": expression}}]


def wish(*expressions: str, **fields: Any) -> dict[str, Any]:
    found = [one for expression in expressions for one in selector(expression)]
    return {"deviceClassName": "any", "selectors": found, **fields}


def claim(name: str = "c", constraints: tuple[Any, ...] = (), **requests: dict[str, Any]) -> Claim:
    asked = [{"name": key, "exactly": value} for key, value in requests.items()]
    spec = {"devices": {"requests": asked, "constraints": constraints}}
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "default", "uid": f"u-{name}"}, "spec": spec}, Claim
    )


ANY = {"any": msgspec.convert({"metadata": {"name": "any"}}, DeviceClass)}


def question(slices: list[Slice], *claims: Claim, existing: tuple[Claim, ...] = ()) -> Question:
    return Question(node=NODE, slices=tuple(slices), classes=ANY, claims=claims, existing=existing)
