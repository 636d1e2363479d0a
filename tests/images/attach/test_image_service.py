# SPDX-License-Identifier: Apache-2.0
"""PullImage as its generator: what becomes of wishes when the caller stays, and when it leaves between two answers."""

import ast
import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

import agent
from agent.api.errors import ApiError, FailureReason
from agent.images.attach.image_service import MOST_LIMITS, ImageService
from agent.model.feed import Feed
from agent.model.images.pull import PullClass, PullOutcome, PullRequest, PullResult
from agent.model.images.state import ImageInspection, ImageState, InspectedLayer, LimitState, PullStage, PullState
from agent.wire.kepd.v1 import image_pb2

IMAGE = "registry.example/a:1"
GROUPS = ("TaskGroup", "timeout", "timeout_at")


class Pulls:
    """A view whose wishes come true when the test says so."""

    def __init__(self) -> None:
        self.pulls: Feed[PullState] = Feed(lambda pull: pull.image)
        self.come = asyncio.Event()
        self.given_up = asyncio.Event()

    async def request(self, request: PullRequest) -> PullOutcome:
        state = PullState(
            id="1",
            image=request.image,
            reference=request.image,
            registry="registry.example",
            handler="",
            pull_class=PullClass.POD,
            stage=PullStage.DOWNLOADING,
        )
        self.pulls.put("1", state)
        try:
            await self.come.wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        return PullOutcome(result=PullResult.PULLED, image=request.image, image_id="sha256:1")


@pytest.fixture
async def troubles():
    """What the loop had to complain of."""
    found = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


def answers(pulls):
    return ImageService(pulls, None).pull_image(image_pb2.PullImageRequest(images=[IMAGE]))


async def test_changes_then_the_outcome_then_the_last_state(troubles):
    pulls = Pulls()
    pulls.come.set()

    kinds = ["outcome" if one.HasField("outcome") else "pull" async for one in answers(pulls)]

    assert kinds.count("outcome") == 1
    assert kinds[-1] == "pull"
    assert troubles == []


async def test_a_caller_that_leaves_between_two_answers_gives_its_wish_up_without_a_complaint(troubles):
    pulls = Pulls()
    stream = answers(pulls)

    await anext(stream)
    await stream.aclose()

    await asyncio.wait_for(pulls.given_up.wait(), 30)
    assert troubles == []


async def test_a_generator_that_nobody_keeps_is_put_away_alike(troubles):
    pulls = Pulls()
    stream = answers(pulls)

    await anext(stream)
    del stream

    await asyncio.wait_for(pulls.given_up.wait(), 30)
    await asyncio.sleep(0)
    assert troubles == []


def test_no_generator_yields_inside_a_group_or_a_time_limit():
    """Closed there, a group turns the end of the generator into an error that no one gets to see but in the log."""
    found = []
    texts = {path: path.read_text() for path in Path(agent.__file__).parent.rglob("*.py")}
    for path in (path for path, text in texts.items() if "async with" in text and "yield" in text):
        for function in ast.walk(ast.parse(texts[path])):
            if not isinstance(function, ast.AsyncFunctionDef) or "contextmanager" in str(
                [ast.unparse(one) for one in function.decorator_list]
            ):
                continue
            for block in ast.walk(function):
                if isinstance(block, ast.AsyncWith) and any(isinstance(step, ast.Yield) for step in ast.walk(block)):
                    named = [ast.unparse(item.context_expr) for item in block.items]
                    found += [f"{path}:{block.lineno}" for name in named if name.split("(")[0].endswith(GROUPS)]

    assert found == []


class Inspector:
    """Of one image."""

    async def inspect(self, image: str) -> ImageInspection | None:
        if image != IMAGE:
            return None
        state = ImageState(id="sha256:1", names=(IMAGE,), size_bytes=5)
        layers = (InspectedLayer("sha256:a", 3, True),)
        return ImageInspection(image=state, reference=IMAGE, layers=layers, total_bytes=7, may_use=("every pod",))


async def test_an_image_in_full_or_the_reason_why_there_is_none():
    service = ImageService(None, SimpleNamespace(inspector=Inspector()))
    found = await service.inspect_image(image_pb2.InspectImageRequest(image=IMAGE))

    assert (found.image.id, found.reference, found.total_bytes, list(found.may_use)) == (
        "sha256:1",
        IMAGE,
        7,
        ["every pod"],
    )
    assert [(one.digest, one.size_bytes, one.is_present) for one in found.layers] == [("sha256:a", 3, True)]
    for image, reason in (("", FailureReason.BAD_REFERENCE), ("other", FailureReason.NO_SUCH_IMAGE)):
        with pytest.raises(ApiError) as refused:
            await service.inspect_image(image_pb2.InspectImageRequest(image=image))
        assert refused.value.reason is reason


class Limits:
    """What SetPullLimit set."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def limits(self) -> list[LimitState]:
        return [LimitState(scope=scope, limit=limit, running=0) for scope, limit in self.of.items()]

    def set_limit(self, scope: str, limit: int) -> None:
        self.of[scope] = limit


@pytest.mark.parametrize("registry", ["x y", "\x1b[2Jhost", "../../etc", "a" * 4000, "host/path", "http://host"])
async def test_a_limit_is_for_a_host_and_nothing_else(registry: str):
    view = Limits()
    with pytest.raises(ApiError, match="is not a registry") as refused:
        await ImageService(view, None).set_pull_limit(image_pb2.SetPullLimitRequest(registry=registry, limit=1))

    assert refused.value.reason is FailureReason.BAD_REFERENCE
    assert view.of == {}


async def test_limits_are_bounded_and_those_that_are_set_can_be_changed():
    view = Limits()
    service = ImageService(view, None)
    for number in range(MOST_LIMITS):
        await service.set_pull_limit(image_pb2.SetPullLimitRequest(registry=f"r{number}.example", limit=1))
    with pytest.raises(ApiError, match="limits are set already"):
        await service.set_pull_limit(image_pb2.SetPullLimitRequest(registry="one-more.example", limit=1))
    await service.set_pull_limit(image_pb2.SetPullLimitRequest(registry="r0.example", limit=7))

    assert len(view.of) == MOST_LIMITS
    assert view.of["r0.example"] == 7
