# SPDX-License-Identifier: Apache-2.0
"""The sentences of `kepctl explain pull`."""

import pytest
from msgspec.structs import replace

from agent.images.view.texts import explain_image, explain_pull
from agent.model.images.pull import ErrorClass, PullClass
from agent.model.images.state import ImageState, PullStage, PullState

NAME = "r.io/a:1"
PULL = PullState(
    id="p1", image=NAME, reference=NAME, registry="r.io", handler="", pull_class=PullClass.POD, stage=PullStage.QUEUED
)  # fmt: skip
ADVICE = f"a pod that needs it, images.prefetch.list or `kepctl pull {NAME}` would have it pulled"


def changed(**fields: object) -> PullState:
    return replace(PULL, **fields)


WAITING = changed(position=2, wait_text="3 of 3 pulls run")
RUNNING = changed(stage=PullStage.DOWNLOADING, percent=40)
FAILED = changed(stage=PullStage.FAILED, error="denied", error_class=ErrorClass.AUTH)


@pytest.mark.parametrize(
    ("pull", "sentence"),
    [
        (None, "no request waits for it, and none of its pulls ended recently"),
        (WAITING, "it waits at position 2: 3 of 3 pulls run"),
        (RUNNING, "its pull is downloading, 40% done"),
        (FAILED, "its last pull failed (auth): denied"),
    ],
)
def test_a_pull_says_how_far_it_is_or_what_it_waits_for(pull: PullState | None, sentence: str) -> None:
    """API-06."""
    assert explain_pull(pull) == sentence


@pytest.mark.parametrize(("pull", "more"), [(None, [ADVICE]), (FAILED, [ADVICE]), (WAITING, []), (RUNNING, [])])
def test_of_an_absent_image_it_is_said_what_would_bring_it(pull: PullState | None, more: list[str]) -> None:
    """API-06: unless a pull is about to."""
    assert list(explain_image(NAME, None, pull)) == [f"{NAME} is not on the node", *more]


def test_of_a_present_image_it_is_said_why_it_stays() -> None:
    kept, leaving = (ImageState(id="sha256:1", names=(NAME,), size_bytes=1, kept_because=why) for why in ("pinned", ""))

    assert list(explain_image(NAME, kept, None)) == [f"{NAME} is on the node as sha256:1: pinned"]
    assert list(explain_image(NAME, leaving, None)) == [
        f"{NAME} is on the node as sha256:1: the next collection would remove it"
    ]
