# SPDX-License-Identifier: Apache-2.0
"""What processes of containers have open, and may have open: by walking /proc, so only where it is asked for.

One container at a time, in a thread, so that others have their turn; each has a bound, above which it has no figure.
"""

import asyncio
import re
from collections.abc import Callable, Mapping

from agent.observe.pages.opened import OpenedFamily
from agent.observe.ports import KernelFiles
from agent.observe.sample.node_sample import ContainerSample, NodeSample

PROCESSES, SOFT_LIMIT = "cgroup.procs", re.compile(rb"^Max open files +(\d+|unlimited) ", re.MULTILINE)
MOST_PROCESSES, MOST_DESCRIPTORS = 1000, 20_000
UNLIMITED = -1


async def opened_of(
    sample: NodeSample, files: KernelFiles, fault: Callable[[str, Exception], None]
) -> dict[str, OpenedFamily]:
    """By instance; `fault` hears of what cannot be read though it is there."""
    found: dict[str, OpenedFamily] = {}
    for one in (one for pod in sample.pods for one in pod.containers if one.ended_s is None):
        try:
            opened = await asyncio.to_thread(_of_one, one, files)
        except OSError as error:
            fault("descriptors", error)
            continue
        if opened is not None:
            found[one.id] = opened
    return found


def _of_one(one: ContainerSample, files: KernelFiles) -> OpenedFamily | None:
    paths: Mapping[str, str] = dict(zip(one.files.names, one.files.paths, strict=True))
    if PROCESSES not in paths:
        return None
    try:
        processes = [int(word) for word in files.read(paths[PROCESSES]).split()]
    except FileNotFoundError:
        return None
    if len(processes) > MOST_PROCESSES:
        return None
    descriptors = sockets = 0
    for process in processes:
        counted = files.count_open(process, MOST_DESCRIPTORS - descriptors)
        if counted is not None:
            descriptors, sockets = descriptors + counted[0], sockets + counted[1]
        if descriptors >= MOST_DESCRIPTORS:
            return None
    return OpenedFamily(descriptors=descriptors, sockets=sockets, most_files=_soft_limit(processes, files))


def _soft_limit(processes: list[int], files: KernelFiles) -> int | None:
    """Of the first process, as cAdvisor tells it."""
    try:
        found = SOFT_LIMIT.search(files.read(f"/proc/{processes[0]}/limits"))
    except (IndexError, FileNotFoundError, ProcessLookupError):
        return None
    if found is None:
        return None
    return UNLIMITED if found[1] == b"unlimited" else int(found[1])
