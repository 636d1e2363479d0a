# SPDX-License-Identifier: Apache-2.0
"""The sentences of events and waiting messages about images: a kubelet's word for word where it has one, else our own.

Source of behaviour: kubernetes `pkg/kubelet/images/image_manager.go`, `pkg/kubelet/events`.
"""

from collections.abc import Iterator, Sequence

import msgspec

from agent.model.finding import Advice
from agent.model.images.pull import PodIdentity
from agent.model.images.state import ImageState, PullState
from agent.model.images.text import duration_text, quoted

PLUGIN = "io.containerd.image-verifier.v1.bindir"
TEXT = (
    "a kubelet's pulls are carried out by the runtime, which answers the kubelet itself: kepd verifies the images that "
    "it pulls, and containerd 2.1 and later verifies all with the same programs"
)


class Sentence(msgspec.Struct, frozen=True):
    is_warning: bool
    reason: str
    text: str


class ImageEvent(msgspec.Struct, frozen=True):
    """Something to tell about a pod's container; the pod is empty for what concerns the node."""

    pod: PodIdentity
    container: str
    sentence: Sentence


def pulling(image: str) -> Sentence:
    return Sentence(False, "Pulling", f"Pulling image {quoted(image)}")


def pulled(image: str, active_s: float, whole_s: float, size_bytes: int) -> Sentence:
    times = f"in {duration_text(active_s)} ({duration_text(whole_s)} including waiting)"
    text = f"Successfully pulled image {quoted(image)} {times}. Image size: {size_bytes} bytes."
    return Sentence(False, "Pulled", text)


def present(image: str) -> Sentence:
    text = f"Container image {quoted(image)} already present on machine and can be accessed by the pod"
    return Sentence(False, "Pulled", text)


def failed(image: str, error: str, reason: str) -> tuple[Sentence, Sentence]:
    return (
        Sentence(True, "Failed", f"Failed to pull image {quoted(image)}: {error}"),
        Sentence(True, "Failed", f"Error: {reason}"),
    )


def backed_off(image: str) -> tuple[Sentence, Sentence]:
    return (
        Sentence(False, "BackOff", f"Back-off pulling image {quoted(image)}"),
        Sentence(True, "Failed", "Error: ImagePullBackOff"),
    )


def back_off_message(image: str, reason: str, error: str) -> str:
    """What the container shows while it may not try."""
    return f"Back-off pulling image {quoted(image)}" + (f": {reason}: {error}" if error else "")


def never_present(image: str) -> Sentence:
    """Policy Never without a usable image; the same whether it is absent or not for this pod."""
    text = f"Container image {quoted(image)} is not present with pull policy of Never"
    return Sentence(True, "ErrImageNeverPull", text)


def bad_name(image: str, error: str) -> Sentence:
    return Sentence(True, "InspectFailed", f"Failed to apply default image tag {quoted(image)}: {error}")


def inspect_failed(image: str, error: str) -> Sentence:
    return Sentence(True, "InspectFailed", f"Failed to inspect image {quoted(image)}: {error}")


def without_id_or_size(image: str) -> str:
    return f"Id or size of image {quoted(image)} is not set"


def secrets_missing(names: Sequence[str]) -> Sentence:
    what = f"Unable to retrieve some image pull secrets ({', '.join(names)})"
    text = f"{what}; attempting to pull the image may not succeed."
    return Sentence(True, "FailedToRetrieveImagePullSecret", text)


def provider_failed(provider: str, why: str) -> Sentence:
    """A credential provider did not answer; the pull goes on without it."""
    text = f"Credential provider {quoted(provider)} failed: {why}; pulling without its credentials"
    return Sentence(True, "CredentialProviderFailed", text)


def fell_back(image: str, error: str) -> Sentence:
    """An image on the node was used because its registry did not answer."""
    text = f"Using the present image {quoted(image)} because its registry cannot be asked: {error}"
    return Sentence(True, "Failed", text)


def queued(image: str, position: int, why: str) -> Sentence:
    return Sentence(False, "PullQueued", f"Waiting to pull image {quoted(image)}: position {position}, {why}")


def progress(image: str, done: str, unpacked: str, left_s: float | None) -> Sentence:
    parts = [done, *((unpacked,) if unpacked else ())]
    if left_s is not None:
        parts.append(f"about {duration_text(max(1.0, round(left_s)))} left")
    return Sentence(False, "PullProgress", f"Pulling image {quoted(image)}: {', '.join(parts)}")


def thrashing(image: str, times: int) -> Sentence:
    text = f"Image {quoted(image)} was fetched {times} times within 24h and deleted again; it is no longer prefetched"
    return Sentence(True, "PrefetchThrashing", text)


def refused(image: str, why: str) -> Sentence:
    return Sentence(True, "PrefetchRefused", f"Image {quoted(image)} is not prefetched: {why}")


def skipped(image: str, why: str) -> Sentence:
    return Sentence(True, "PrefetchSkipped", f"Image {quoted(image)} is not prefetched now: {why}")


def explain_pull(pull: PullState | None) -> str:
    if pull is None:
        return "no request waits for it, and none of its pulls ended recently"
    if pull.position:
        return f"it waits at position {pull.position}: {pull.wait_text}"
    if pull.error:
        kind = f" ({pull.error_class})" if pull.error_class else ""
        return f"its last pull failed{kind}: {pull.error}"
    share = f", {pull.percent}% done" if pull.percent is not None and not pull.stage.is_over else ""
    return f"its pull is {pull.stage}{share}"


def explain_image(name: str, image: ImageState | None, pull: PullState | None) -> Iterator[str]:
    """Of an image on the node, why it stays; of another, what would bring it, unless a pull is about to."""
    if image is not None:
        yield f"{name} is on the node as {image.id}: {image.kept_because or 'the next collection would remove it'}"
        return
    yield f"{name} is not on the node"
    if pull is None or pull.stage.is_over:
        yield f"a pod that needs it, images.prefetch.list or `kepctl pull {name}` would have it pulled"


def signature_advice(folder: str) -> list[Advice]:
    """`folder`: `images.verify.signatures` beside a proxy; empty where none is set, or there is no proxy."""
    if not folder:
        return []
    wanted = f'bin_dir = "{folder}" of {PLUGIN}'
    return [
        Advice(subject="images.verify.signatures", found="kepd's own pulls", wanted=wanted, text=TEXT, is_note=True)
    ]
