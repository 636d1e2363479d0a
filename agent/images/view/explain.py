# SPDX-License-Identifier: Apache-2.0
"""The sentences of `kepctl explain pull`: what becomes of a pull, and whether its image is on the node."""

from collections.abc import Iterator

from agent.model.images.state import ImageState, PullState


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
