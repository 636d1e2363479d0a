# SPDX-License-Identifier: Apache-2.0
"""Images and pulls as messages. Pure: values of agent.model in, messages out."""

from agent.api.timestamps import timestamp
from agent.model.image_pull import PullOutcome
from agent.model.image_report import CollectedImage, MirrorState, PullExplanation
from agent.model.image_state import ImageState, LimitState, PullState
from agent.wire.kepd.v1 import image_pb2

__all__ = [
    "collected_message",
    "explanation_message",
    "image_message",
    "limit_message",
    "mirror_message",
    "outcome_message",
    "pull_message",
]


def image_message(image: ImageState) -> image_pb2.Image:
    """One image."""
    return image_pb2.Image(
        id=image.id,
        names=image.names,
        size_bytes=image.size_bytes,
        is_pinned=image.is_pinned,
        is_pinned_by_kepd=image.is_pinned_by_us,
        is_in_use=image.is_in_use,
        used_by=image.used_by,
        first_seen=timestamp(image.first_seen_s),
        last_used=timestamp(image.last_used_s),
        source=image.source,
        kept_because=image.kept_because,
    )


def pull_message(pull: PullState) -> image_pb2.Pull:
    """One pull."""
    requesters = [
        image_pb2.PullRequester(
            id=one.id,
            namespace=one.namespace,
            pod=one.pod,
            container=one.container,
            priority=one.priority,
            policy=one.policy,
            since=timestamp(one.since_s),
        )
        for one in pull.requesters
    ]
    layers = [
        image_pb2.PullLayer(
            digest=one.digest, size_bytes=one.size_bytes, done_bytes=one.done_bytes, stage=one.stage.value
        )
        for one in pull.layers
    ]
    return image_pb2.Pull(
        id=pull.id,
        image=pull.image,
        reference=pull.reference,
        registry=pull.registry,
        pull_class=pull.pull_class.value,
        stage=pull.stage.value,
        requesters=requesters,
        position=pull.position,
        wait_reason=pull.wait_reason,
        wait_text=pull.wait_text,
        queued_at=timestamp(pull.queued_at_s),
        started_at=timestamp(pull.started_at_s),
        ended_at=timestamp(pull.ended_at_s),
        size_bytes=pull.size_bytes or 0,
        total_bytes=pull.total_bytes or 0,
        done_bytes=pull.done_bytes,
        percent=pull.percent or 0,
        rate_bytes_per_second=pull.rate_bytes_s,
        eta_seconds=pull.eta_s or 0.0,
        is_eta_rough=pull.is_eta_rough,
        layers=layers,
        layers_unpacked=pull.layers_unpacked,
        attempts=pull.attempts,
        image_id=pull.image_id,
        error=pull.error,
        error_class=pull.error_class.value if pull.error_class else "",
    )


def outcome_message(outcome: PullOutcome) -> image_pb2.PullOutcome:
    """How a wish ended."""
    return image_pb2.PullOutcome(
        image=outcome.image,
        result=outcome.result.value,
        image_id=outcome.image_id,
        size_bytes=outcome.size_bytes,
        reason=outcome.reason,
        message=outcome.message,
        error_class=outcome.error_class.value if outcome.error_class else "",
        waited_seconds=outcome.waited_s,
        took_seconds=outcome.active_s,
    )


def limit_message(limit: LimitState) -> image_pb2.PullLimit:
    """One limit."""
    return image_pb2.PullLimit(scope=limit.scope, limit=limit.limit, running=limit.running)


def collected_message(one: CollectedImage) -> image_pb2.CollectedImage:
    """One image that went, or would go."""
    return image_pb2.CollectedImage(
        image=image_message(one.image), reason=one.reason, removed=one.is_removed, error=one.error
    )


def mirror_message(mirror: MirrorState) -> image_pb2.Mirror:
    """One host."""
    return image_pb2.Mirror(
        registry=mirror.registry,
        url=mirror.url,
        capabilities=mirror.capabilities,
        source=mirror.source,
        problem=mirror.problem,
    )


def explanation_message(explanation: PullExplanation) -> image_pb2.ExplainPullResponse:
    """Why a pull is as it is."""
    return image_pb2.ExplainPullResponse(
        image=explanation.image,
        reference=explanation.reference,
        is_present=explanation.is_present,
        pull=pull_message(explanation.pull) if explanation.pull else None,
        sentences=explanation.sentences,
    )
