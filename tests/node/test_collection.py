# SPDX-License-Identifier: Apache-2.0
"""Collection with a real containerd: names by the image store, images by CRI."""

from pathlib import Path

import pytest

from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.image_client import ImageClient

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]


def test_only_the_newest_tag_of_a_repository_stays(lab: Lab, short_path: Path, free_port: int) -> None:
    """IMG-G11: an image goes with its last tag, a single name without its image."""
    first, second = (lab.push(Image.sized("collect/app", 50_000 + tag, tag=str(tag))) for tag in (1, 2))
    other = lab.push(Image.sized("collect/other", 50_000))
    newest = second.replace(":2", ":0")
    for image in (first, second, other):
        lab.cri.pull(image)
    lab.containerd.ctr("images", "tag", second, newest)
    extra = "images: {gc: {keepLast: 1, minAge: 0s, period: 1s}}\n"
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as kepd:
        kepd.start("--planes", "images").wait_ready()
        client = ImageClient(kepd.socket)

        def names() -> set[str]:
            return {name for name in client.images() if "/collect/" in name and "@" not in name}

        kepd.wait(lambda: names() == {newest, other}, "the newest tag of each", 30)
        client.close()
        assert "Traceback" not in kepd.log.read_text()
    for image in (newest, other):
        lab.cri.remove_image(image)
