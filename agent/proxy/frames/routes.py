# SPDX-License-Identifier: Apache-2.0
"""Which calls are looked into, and how. Any other path passes as bytes, whatever service or version it belongs to."""

from enum import StrEnum

import msgspec


class Holding(StrEnum):
    """What can be kept back of a request while a gate is closed.

    LAST: all but the last byte travels on, so that a large request takes nothing from the window of its connection.
    WHOLE: a small request whose content may have to change.
    """

    NEVER = "never"
    LAST = "last"
    WHOLE = "whole"


class CallRoute(msgspec.Struct, frozen=True):
    """One method that is read along."""

    name: str
    holding: Holding = Holding.NEVER
    keeps_answer: bool = False
    """Its answer is read along, and passes untouched."""
    is_endless: bool = False
    """A stream that an end does not wait for."""


RUNTIME = (
    CallRoute("RunPodSandbox", keeps_answer=True),
    CallRoute("StopPodSandbox"),
    CallRoute("RemovePodSandbox"),
    CallRoute("CreateContainer", Holding.LAST, keeps_answer=True),
    CallRoute("StartContainer", Holding.LAST),
    CallRoute("StopContainer", Holding.WHOLE),
    CallRoute("RemoveContainer"),
    CallRoute("ExecSync"),
    CallRoute("ContainerStatus"),
    CallRoute("PodSandboxStatus"),
    CallRoute("GetContainerEvents", is_endless=True),
)
ROUTES = {
    **{f"/runtime.v1.RuntimeService/{one.name}".encode(): one for one in RUNTIME},
    b"/runtime.v1.ImageService/PullImage": CallRoute("PullImage", Holding.LAST, keeps_answer=True),
    b"/runtime.v1.ImageService/RemoveImage": CallRoute("RemoveImage", Holding.LAST),
}
