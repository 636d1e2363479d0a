# SPDX-License-Identifier: Apache-2.0
"""kepd with the images plane alone, its client, and the registry's two doors, for tests with a real containerd.

Owns: the daemon's life and that nothing of a test stays in the runtime.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.wire.cri import runtime_v1_pb2 as cri_pb
from tests.host.process import Kepd
from tests.lab import Image, Lab, Throttle
from tests.node.image_client import ImageClient

__all__ = ["CONFIG", "LIMIT", "Node", "image_node"]

LIMIT = 2
CONFIG = f"""images:
  maxParallelPulls: {LIMIT}
  criticalReserve: 0
  perPodMax: 0
  progressTimeout: 2s
  sizeProbe: "off"
  backoff: {{start: 500ms}}
"""


class Node:
    """kepd, its client, and the registry's two doors."""

    def __init__(self, kepd: Kepd, lab: Lab, throttle: Throttle) -> None:
        self.kepd, self.lab, self.throttle = kepd, lab, throttle
        self.client = ImageClient(kepd.socket)

    def restart(self, number: int = signal.SIGKILL) -> None:
        self.client.close()
        self.kepd.end(number)
        self.start()

    def start(self) -> None:
        self.kepd.start("--planes", "images").wait_ready()
        self.client = ImageClient(self.kepd.socket)

    def image(self, name: str, *sizes_bytes: int) -> str:
        """An image in the registry, named so that its pull goes through the throttle."""
        image = Image.sized(f"node/{name}", *(sizes_bytes or (200_000,)))
        self.lab.push(image)
        return self.lab.throttled(image)

    def blob_gets(self, name: str) -> list[str]:
        return [one.path for one in self.throttle.requests(f"GET /v2/node/{name}/blobs/") if (one.status or 200) < 400]


@contextmanager
def image_node(lab: Lab, throttle: Throttle, folder: Path, port: int, extra: str = "") -> Iterator[Node]:
    """One that is ready; afterwards its images are gone, and its log tells of no defect. `extra`: more keys."""
    config = CONFIG + f"  nodeConfig: {folder}/config.json\n" + extra
    with Kepd(folder, port, endpoint=lab.endpoint, extra=config) as kepd:
        kepd.start("--planes", "images").wait_ready()
        running = Node(kepd, lab, throttle)
        yield running
        throttle.reset()
        running.client.close()
        present = lab.cri.call("ListImages", cri_pb.ListImagesRequest()).images
        for name in [tag for image in present for tag in image.repo_tags if "/node/" in tag]:
            lab.cri.remove_image(name)
        assert "Traceback" not in kepd.log.read_text(), kepd.log.read_text()
