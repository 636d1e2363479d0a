# SPDX-License-Identifier: Apache-2.0
"""A private containerd with its own network namespace and registry, for tests and for trying kepd out.

Owns: everything a lab starts, from the first directory to the last cgroup, and its removal.
Never: needs or disturbs a containerd, a network or a registry that the machine already has.
`Lab.start()` is the way in; `python -m tests.lab` is the same for shell scripts; fixtures.py for pytest.
"""

from tests.lab.errors import LabError
from tests.lab.faults import Fault, Request
from tests.lab.images import STAY, Image, Layer, OciImage
from tests.lab.lab import Lab
from tests.lab.pods import Container, ExecResult, Pod
from tests.lab.sweep import sweep_dead
from tests.lab.throttle import Throttle

__all__ = [
    "STAY",
    "Container",
    "ExecResult",
    "Fault",
    "Image",
    "Lab",
    "LabError",
    "Layer",
    "OciImage",
    "Pod",
    "Request",
    "Throttle",
    "sweep_dead",
]
