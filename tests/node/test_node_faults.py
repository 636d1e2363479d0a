# SPDX-License-Identifier: Apache-2.0
"""NU-03: what is wrong with a node as a whole is the cause that a pod of it names."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.lab import Fault, Lab
from tests.node.test_faults import Bad, Node, check, daemon_of, refused

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def node(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with daemon_of(lab, tmp_path_factory.mktemp("n")) as daemon:
        daemon.start("--planes", "pods,images")
        daemon.wait(lambda: daemon.ctl("health").returncode == 0, "healthy")
        yield Node(daemon, lab)


@contextmanager
def held(node: Node) -> Iterator[None]:
    """A registry that wants a pause; who asks after that waits in the queue."""
    slow = Fault(kind="status", pattern="/v2/node/busy", status=429, headers={"Retry-After": "600"})
    with node.lab.throttle.fault(slow):
        done = node.kepd.ctl("pull", f"{node.lab.throttle.address}/node/busy:0")
        assert done.returncode, done.stdout
        yield


@contextmanager
def crowded(node: Node) -> Iterator[None]:
    assert node.kepd.ctl("config", "set", "pods.maxPods=0").returncode == 0
    try:
        yield
    finally:
        assert node.kepd.ctl("config", "reload").returncode == 0


@contextmanager
def without_network(node: Node) -> Iterator[None]:
    (path,) = (node.lab.place.directory / "cni").glob("*.conflist")
    path.rename(path.with_suffix(".away"))
    try:
        yield
    finally:
        path.with_suffix(".away").rename(path)


@contextmanager
def drained(node: Node) -> Iterator[None]:
    assert node.kepd.ctl("drain", "--grace", "1").returncode == 0
    try:
        yield
    finally:
        assert node.kepd.ctl("uncordon").returncode == 0


@contextmanager
def without_runtime(node: Node) -> Iterator[None]:
    node.lab.containerd.kill()
    try:
        yield
    finally:
        node.lab.containerd.start()


Makes = Callable[[Node], AbstractContextManager[None]]
LATER: tuple[tuple[Makes, Bad], ...] = (
    (held, Bad("image-held", "image: $THROTTLE/node/busy:1", "container app waits for its image .*/busy:1",
               "as soon as the image is there", "kepctl explain pull")),
    (crowded, refused("no-place", "", "the node has as many pods as it may", "kepctl get pods -A")),
    (without_network, Bad("no-network", "", "the node has no network for pods: ", r"tries again in \d+ s",
                          "kepctl doctor")),
    (without_runtime, Bad("no-runtime", "", "the container runtime does not answer: ", r"tries again in \d+ s",
                          "kepctl doctor")),
    (drained, refused("drained", "", r"the node takes no pods: root \(uid 0\) has drained", "kepctl uncordon")),
)  # fmt: skip


@pytest.mark.parametrize(("makes", "bad"), LATER, ids=lambda one: getattr(one, "name", ""))
def test_the_commands_name_what_is_wrong_with_the_node(node: Node, makes: Makes, bad: Bad) -> None:
    with makes(node):
        node.put(bad.name, bad.pod(node.image))
        check(node, "pod", bad.name, bad)
    (node.kepd.manifests / f"{bad.name}.yaml").unlink()
    node.kepd.wait(lambda: not node.kepd.pods(), "it is gone")
