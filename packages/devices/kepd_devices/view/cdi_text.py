# SPDX-License-Identifier: Apache-2.0
"""A CDI id as people read it: what its file has, and what a container is given."""

from collections.abc import Iterator

import msgspec

from agent.model.devices.container_devices import ContainerDevices
from agent.model.devices.report import CdiReport
from agent.model.refused import Refused
from agent.model.runtime.features import NUMBER, RuntimeFeatures
from kepd_devices.cdi.merging import CannotMerge, Catalogue, Resolved

RESOLVES_FROM = (2, 0)


def told_features(text: str) -> RuntimeFeatures:
    """Of a runtime that is only spoken of; containerd resolves ids by default from 2.0 on. Raises Refused."""
    name, _, version = text.strip().lower().partition(" ")
    number = NUMBER.match(version)
    if number is None:
        raise Refused("invalid", f"{text!r} is no runtime; expected NAME VERSION, such as containerd 1.6.20")
    is_modern = name == "containerd" and (int(number[1]), int(number[2])) >= RESOLVES_FROM
    return RuntimeFeatures(name=name, version=version, resolves_cdi=is_modern)


def edit_lines(found: Resolved) -> Iterator[str]:
    """Of the file, then of the device, with the names that the file uses. No value of a variable."""
    for edits in (found.file.spec.container_edits, found.device.container_edits):
        for key, value in msgspec.to_builtins(edits).items():
            for one in value if isinstance(value, list | tuple) else [value]:
                told = str(one).partition("=")[0] if key == "env" else _flat(one)
                yield f"{key} {told}"


def cdi_listed(catalogue: Catalogue, name: str) -> CdiReport:
    try:
        found = catalogue.resolve(name)
    except CannotMerge as error:
        return CdiReport(id=name, file="", cdi_version="", refusal=str(error))
    file = found.file
    return CdiReport(id=name, file=file.path, cdi_version=file.spec.cdi_version, edits=tuple(edit_lines(found)))


def given_lines(given: ContainerDevices) -> Iterator[str]:
    yield from (f"CDI id {one}" for one in given.cdi_ids)
    yield from (f"variable {name}" for name, _ in given.env)
    for node in given.nodes:
        yield f"node {node.container_path} of {node.host_path} with {node.permissions}"
    for mount in given.mounts:
        yield f"mount {mount.container_path} of {mount.host_path}" + (" to read" if mount.is_read_only else "")
    yield from (f"group {one}" for one in given.groups)


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={one}" for key, one in value.items())
    return str(value)
