# SPDX-License-Identifier: Apache-2.0
"""ImageService: pulls under one limit, images, collection. Converts and delegates."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from time import monotonic

from agent.api.call_quota import is_trusted
from agent.api.errors import FailureReason, invalid, not_found, too_much
from agent.api.messages import to_message
from agent.api.offers import following, listed, own
from agent.api.peer import CALLER
from agent.api.watching import followed
from agent.images.run.node_images import NodeImages
from agent.images.run.puller import Puller
from agent.kinds.own_shape import own_object
from agent.kinds.shown import How, Offer
from agent.kinds.table import Object
from agent.model.allowance import CallerMeter, Share
from agent.model.finding import printable
from agent.model.images.pull import ListedImage, PullPolicy, PullRequest
from agent.model.images.reference import default_policy, is_registry
from agent.model.images.state import PullStage, PullState
from agent.wire.kepd.v1 import cri_proxy_pb2 as hold_pb
from agent.wire.kepd.v1 import image_pb2 as pb

MOST_IMAGES_PER_CALL = 200
# Of one user, root excepted: each stands in the queue, which all look through.
IMAGES = "images"
METERED = {IMAGES: Share(1000, 10)}
MOST_LIMITS = 256
POLICIES = {policy.value: policy for policy in PullPolicy}


class ImageService:
    def __init__(self, pulls: Puller, images: NodeImages) -> None:
        self._pulls = pulls
        self._images = images
        self._meter = CallerMeter(METERED)

        self.offers = {
            # The runtime has no pages: it is asked for all, and these are some hundreds.
            "images": own("Image", lambda _: images.collector.refresh(), lambda image: image.id),
            "pulls": Offer(
                listed(self._looked_at, _order, _pull_object), following(lambda: pulls.pulls, _pull_object),
                self._told_limits,
            ),
            "mirrors": own("Mirror", lambda _: images.mirrors(), lambda mirror: mirror.registry),
            "holds": own("Hold", lambda _: pulls.holds(), lambda hold: hold.id),
        }  # fmt: skip

    def _looked_at(self, _how: How) -> Iterable[PullState]:
        self._pulls.look()
        return self._pulls.pulls.items.values()

    def _told_limits(self) -> list[str]:
        return [
            f"{each.scope}: {each.running}{f' of {each.limit} running' if each.limit else ' running, without a limit'}"
            for each in self._pulls.limits()
        ]

    async def pull_image(self, request: pb.PullImageRequest) -> AsyncIterator[pb.PullImageResponse]:
        """Ask for images and tell how they come; whoever ends the call gives the wish up."""
        view = self._pulls
        wishes = _wishes(request)
        self._charge(len(wishes))
        if request.detach:
            for wish in wishes:
                view.order(wish)
            return
        told: asyncio.Queue[pb.PullImageResponse | None] = asyncio.Queue()
        # A task of its own: a TaskGroup around a yield breaks when the generator is closed at that yield.
        waiting = asyncio.create_task(_wait_for(view, wishes, told.put_nowait), name="pull-wishes")
        waiting.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (answer := await told.get()) is not None:
                yield answer
            waiting.result()
        finally:
            waiting.cancel()

    def _charge(self, count: int) -> None:
        caller = CALLER.get()
        if caller is None or is_trusted(caller.uid):
            return
        owed_s = self._meter.take(caller.uid, IMAGES, monotonic(), count, refuses=True)
        if owed_s:
            share = METERED[IMAGES]
            text = f"uid {caller.uid} asked for more than {share.at_once} images at once and {share.a_second} a second"
            raise too_much(text, owed_s)

    async def cancel_pull(self, request: pb.CancelPullRequest) -> pb.CancelPullResponse:
        if not self._pulls.cancel(request.id):
            text = f'no pull "{request.id}" waits or runs; see kepctl get pulls'
            raise not_found(FailureReason.NO_SUCH_PULL, text)
        return pb.CancelPullResponse()

    async def set_pull_limit(self, request: pb.SetPullLimitRequest) -> pb.SetPullLimitResponse:
        view = self._pulls
        registry = request.registry
        if registry and not is_registry(registry):
            text = f'"{printable(registry[:80])}" is not a registry; expected a host, such as registry.example:5000'
            raise invalid(FailureReason.BAD_REFERENCE, text, [("registry", text)])
        scopes = {limit.scope for limit in view.limits()}
        if registry and registry not in scopes and len(scopes) >= MOST_LIMITS:
            raise too_much(f"{MOST_LIMITS} limits are set already; a reload of the configuration takes them back")
        view.set_limit(request.registry, request.limit)
        return pb.SetPullLimitResponse(limits=_limits(view))

    async def retry_pulls(self, request: pb.RetryPullsRequest) -> pb.RetryPullsResponse:
        forgotten = self._pulls.retry(request.namespace, request.pod)
        return pb.RetryPullsResponse(forgotten=forgotten)

    async def release_pull_hold(self, request: hold_pb.ReleaseHoldRequest) -> hold_pb.ReleaseHoldResponse:
        if not self._pulls.release_hold(request.id):
            text = f'no pull is held by "{request.id}"; it may have ended by itself, see kepctl get holds'
            raise not_found(FailureReason.NO_SUCH_OBJECT, text)
        return hold_pb.ReleaseHoldResponse()

    async def prefetch(self, request: pb.PrefetchRequest) -> pb.PrefetchResponse:
        images = await self._images.prefetcher.prefetch(
            [
                ListedImage(image=one.image, is_pinned=one.pin, is_content_only=one.content_only)
                for one in request.images
            ]
        )
        states = Counter(one.state for one in images)
        return pb.PrefetchResponse(
            queued=states["queued"],
            present=states["present"],
            skipped=states["skipped"],
            images=[to_message(pb.PrefetchedImage, one) for one in images],
        )

    async def collect_garbage(self, request: pb.CollectGarbageRequest) -> pb.CollectGarbageResponse:
        state = await self._images.collector.collect(dry_run=request.dry_run)
        return to_message(pb.CollectGarbageResponse, state)

    async def inspect_image(self, request: pb.InspectImageRequest) -> pb.InspectImageResponse:
        if not request.image:
            raise invalid(FailureReason.BAD_REFERENCE, "no image is named", [("image", "is empty")])
        found = await self._images.inspector.inspect(request.image)
        if found is None:
            text = f'no image "{request.image}" on this node; see kepctl get images'
            raise not_found(FailureReason.NO_SUCH_IMAGE, text)
        return to_message(pb.InspectImageResponse, found)

    async def explain_pull(self, request: pb.ExplainPullRequest) -> pb.ExplainPullResponse:
        if not request.image:
            raise invalid(FailureReason.BAD_REFERENCE, "no image is named", [("image", "is empty")])
        return to_message(pb.ExplainPullResponse, await self._images.explain(request.image))


async def _wait_for(view: Puller, wishes: list[PullRequest], tell: Callable[[pb.PullImageResponse], None]) -> None:
    """Have the images, and tell each change and outcome. Cancelled, it gives the wishes up."""
    names = {wish.image for wish in wishes}
    shown: dict[str, PullState] = {}

    def show(pull: PullState) -> None:
        if pull.stage is not PullStage.SKIPPED and shown.get(pull.id) is not pull:
            shown[pull.id] = pull
            tell(pb.PullImageResponse(pull=_pull(pull)))

    async def watch() -> None:
        async for change in followed(view.pulls, names):
            if change.item is not None:
                show(change.item)

    async def wait(wish: PullRequest) -> None:
        ended = await view.request(wish)
        outcome = to_message(pb.PullOutcome, ended, took_seconds=ended.active_s)
        tell(pb.PullImageResponse(outcome=outcome))

    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(watch(), name="pull-watch")
        await asyncio.gather(*(wait(wish) for wish in wishes))
        watcher.cancel()
    # The last word on each: the feed may have told it after the outcome.
    for pull in view.pulls.items.values():
        if pull.image in names:
            show(pull)


def _wishes(request: pb.PullImageRequest) -> list[PullRequest]:
    if not 0 < len(request.images) <= MOST_IMAGES_PER_CALL:
        text = f"{len(request.images)} images; one call takes from 1 to {MOST_IMAGES_PER_CALL}"
        raise invalid(FailureReason.BAD_REFERENCE, text, [("images", text)])
    if request.policy and request.policy not in POLICIES:
        text = f'"{request.policy}" is not one of {", ".join(POLICIES)}'
        raise invalid(FailureReason.BAD_REFERENCE, text, [("policy", text)])
    return [
        PullRequest(image=image, policy=PullPolicy(request.policy or default_policy(image)), priority=request.priority)
        for image in dict.fromkeys(request.images)
    ]


def _pull_object(pull: PullState) -> Object:
    return own_object("Pull", pull.id, pull, labels={"stage": pull.stage, "registry": pull.registry})


def _pull(pull: PullState) -> pb.Pull:
    return to_message(pb.Pull, pull)


def _limits(view: Puller) -> list[pb.PullLimit]:
    return [to_message(pb.PullLimit, limit) for limit in view.limits()]


def _order(pull: PullState) -> str:
    """Running first, then the line, then what is over."""
    rank = 1 if pull.stage is PullStage.QUEUED else 2 if pull.stage.is_over else 0
    return f"{rank}{pull.position:06d}{pull.id:>12}"
