# SPDX-License-Identifier: Apache-2.0
"""Which files tell about one group, and where they lie in each version (OBS-04)."""

from collections.abc import Iterator, Mapping

import msgspec

from agent.observe.kernel.group_text import LEGACY_FILES, PRESSURES, UNIFIED_FILES
from agent.observe.kernel.hierarchies import UNIFIED, Hierarchies


class GroupFiles(msgspec.Struct, frozen=True):
    """Names and paths, in the same order."""

    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


def group_files(groups: Mapping[str, str], hierarchies: Hierarchies, *, has_pressure: bool) -> GroupFiles:
    """`groups` are the paths of one group by hierarchy. On a hybrid node pressure is counted in the unified hierarchy,
    if the runtime put the group there (PSI-02)."""
    found = tuple(_files(groups, hierarchies, has_pressure=has_pressure))
    return GroupFiles(tuple(name for name, _ in found), tuple(path for _, path in found))


def _files(groups: Mapping[str, str], hierarchies: Hierarchies, *, has_pressure: bool) -> Iterator[tuple[str, str]]:
    files: dict[str, tuple[str, ...]] = dict(LEGACY_FILES) if hierarchies.version == 1 else {UNIFIED: UNIFIED_FILES}
    if has_pressure and groups.get(UNIFIED, "/") != "/":
        files[UNIFIED] = (*files.get(UNIFIED, ()), *PRESSURES)
    for controller, names in files.items():
        folder = hierarchies.folder(controller, groups[controller]) if controller in groups else None
        if folder is not None:
            yield from ((name, f"{folder}/{name}") for name in names)
