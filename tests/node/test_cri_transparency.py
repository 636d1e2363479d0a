# SPDX-License-Identifier: Apache-2.0
"""Every method of CRI, direct and through the proxy: the same answers, byte for byte, errors with code and details.

The same calls are made twice against one containerd. What must differ from call to call (ids, times, ports,
figures that move) is asked for in a state that does not change between both, or left out by name.
"""

import hashlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from agent.drivers.cri import methods
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.lab import STAY, Image, Lab, Pod
from tests.node.kubelet import IMAGE, IMAGE_METHODS, OPTIONS, RUNTIME
from tests.ports import take_port

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]


@dataclass(frozen=True)
class Seen:
    """All that a client can see of a call."""

    answer: bytes
    code: str
    details: str
    initial: tuple[tuple[str, str | bytes], ...]
    trailing: tuple[tuple[str, str | bytes], ...]


def ask(path: Path, method: str, message: bytes) -> Seen:
    with grpc.insecure_channel(f"unix://{path}", options=OPTIONS) as channel:
        service = IMAGE if method in IMAGE_METHODS else RUNTIME
        service = "" if method.startswith("/") else service
        call = channel.unary_unary(service + method).future(message, timeout=30)
        try:
            answer = call.result()
        except grpc.RpcError:
            answer = b""
        initial, trailing = (tuple(sorted(found)) for found in (call.initial_metadata(), call.trailing_metadata()))
        return Seen(answer, call.code().name, call.details(), initial, trailing)


@dataclass
class Both:
    direct: Path
    through: Path
    pod: Pod
    container_id: str
    image: str
    log: Path

    def same(self, method: str, request: object = b"", tries: int = 1) -> Seen:
        """The answer, which both ways have in common. `tries`: for one whose order is up to chance."""
        message = request if isinstance(request, bytes) else request.SerializeToString()  # type: ignore[attr-defined]
        for _ in range(tries):
            direct, through = ask(self.direct, method, message), ask(self.through, method, message)
            if direct == through:
                break
        assert direct == through, through.details + self.log.read_text()[-4000:]
        return through


@pytest.fixture(scope="module")
def both(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("t")
    image = lab.push(Image(name="node/same"))
    lab.cri.pull(image)
    with Kepd(folder, take_port(), endpoint=lab.endpoint) as kepd:
        kepd.start("--planes", "proxy").wait_ready()
        pod = lab.run_pod("same", {"app": "same"})
        container = pod.run("main", image, STAY)
        through = folder / "run" / "cri" / "kubelet.sock"
        yield Both(lab.place.containerd_socket, through, pod, container.id, image, kepd.log)
        pod.remove()
        assert "Traceback" not in kepd.log.read_text()


NOBODY = "0123456789abcdef" * 4
UNKNOWN_FIELD = b"\xfa\x3f\x03new"


def test_answers_that_say_something(both: Both) -> None:
    """PRX table 4: what the kubelet asks for all the time."""
    pod, container_id = both.pod, both.container_id
    answers = [
        both.same("Version", pb.VersionRequest(version="0.1.0")),
        both.same("Status", pb.StatusRequest()),
        both.same("ListPodSandbox", pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(id=pod.id))),
        both.same(
            "ListPodSandbox", pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(label_selector={"app": "same"}))
        ),
        both.same("ListContainers", pb.ListContainersRequest(filter=pb.ContainerFilter(pod_sandbox_id=pod.id))),
        both.same("ContainerStatus", pb.ContainerStatusRequest(container_id=container_id)),
        both.same("ContainerStatus", pb.ContainerStatusRequest(container_id=container_id, verbose=True)),
        both.same("PodSandboxStatus", pb.PodSandboxStatusRequest(pod_sandbox_id=pod.id)),
        both.same("ImageStatus", pb.ImageStatusRequest(image=pb.ImageSpec(image=both.image))),
        # containerd 1.6 takes no notice of the filter, and lists what other tests have left in the order of a Go map.
        both.same("ListImages", pb.ListImagesRequest(filter=pb.ImageFilter(image=pb.ImageSpec(image=both.image))), 50),
        both.same("PullImage", pb.PullImageRequest(image=pb.ImageSpec(image=both.image))),
        both.same("ExecSync", pb.ExecSyncRequest(container_id=container_id, cmd=["echo", "hello"], timeout=10)),
        both.same("ExecSync", pb.ExecSyncRequest(container_id=container_id, cmd=["sh", "-c", "exit 7"], timeout=10)),
        both.same("ReopenContainerLog", pb.ReopenContainerLogRequest(container_id=container_id)),
        both.same("UpdateRuntimeConfig", pb.UpdateRuntimeConfigRequest()),
        both.same(
            "UpdateContainerResources",
            pb.UpdateContainerResourcesRequest(
                container_id=container_id, linux=pb.LinuxContainerResources(cpu_shares=100)
            ),
        ),
    ]

    assert {one.code for one in answers} == {"OK"}
    assert all(one.answer for one in answers[:13])


ERRORS = [
    ("ContainerStatus", pb.ContainerStatusRequest(container_id=NOBODY)),
    ("PodSandboxStatus", pb.PodSandboxStatusRequest(pod_sandbox_id=NOBODY)),
    ("StartContainer", pb.StartContainerRequest(container_id=NOBODY)),
    ("StopContainer", pb.StopContainerRequest(container_id=NOBODY, timeout=3)),
    ("RemoveContainer", pb.RemoveContainerRequest(container_id=NOBODY)),
    ("StopPodSandbox", pb.StopPodSandboxRequest(pod_sandbox_id=NOBODY)),
    ("RemovePodSandbox", pb.RemovePodSandboxRequest(pod_sandbox_id=NOBODY)),
    ("CreateContainer", pb.CreateContainerRequest(pod_sandbox_id=NOBODY)),
    ("RunPodSandbox", pb.RunPodSandboxRequest()),
    ("ExecSync", pb.ExecSyncRequest(container_id=NOBODY, cmd=["x"])),
    ("Exec", pb.ExecRequest(container_id=NOBODY, cmd=["x"])),
    ("Attach", pb.AttachRequest(container_id=NOBODY, stdout=True)),
    ("PortForward", pb.PortForwardRequest(pod_sandbox_id=NOBODY)),
    ("ContainerStats", pb.ContainerStatsRequest(container_id=NOBODY)),
    ("PodSandboxStats", pb.PodSandboxStatsRequest(pod_sandbox_id=NOBODY)),
    ("UpdateContainerResources", pb.UpdateContainerResourcesRequest(container_id=NOBODY)),
    ("ReopenContainerLog", pb.ReopenContainerLogRequest(container_id=NOBODY)),
    ("CheckpointContainer", pb.CheckpointContainerRequest(container_id=NOBODY)),
    ("ImageStatus", pb.ImageStatusRequest(image=pb.ImageSpec(image="Not/A Name"))),
    ("PullImage", pb.PullImageRequest(image=pb.ImageSpec(image="Not/A Name"))),
    ("PullImage", pb.PullImageRequest(image=pb.ImageSpec(image="127.0.0.1:1/no/registry:1"))),
    ("RemoveImage", pb.RemoveImageRequest(image=pb.ImageSpec(image="127.0.0.1:1/absent/image:1"))),
    ("ListMetricDescriptors", pb.ListMetricDescriptorsRequest()),
    ("RuntimeConfig", b""),
    ("UpdatePodSandboxResources", b""),
]


@pytest.mark.parametrize(
    ("method", "request_"), ERRORS, ids=[f"{row[0]}-{number}" for number, row in enumerate(ERRORS)]
)
def test_what_is_wrong_is_wrong_in_the_same_words(both: Both, method: str, request_: object) -> None:
    """PRX-25, IMG-X04: code, text, metadata, and answers that are empty."""
    both.same(method, request_)


@pytest.mark.parametrize("method", [*ERRORS[0][:1], "RunPodSandbox", "CreateContainer", "StopContainer", "PullImage"])
def test_garbage_in_a_message_is_the_runtime_s_to_refuse(both: Both, method: str) -> None:
    """PRX-53: what we cannot read passes."""
    assert both.same(method, b"\xff\xff\xff kepd.dev/").code != "OK"


@pytest.mark.parametrize("method", ["CreateContainer", "Version", "StopContainer"])
def test_a_message_of_64_mebibytes_fails_for_its_sender_alone(both: Both, method: str) -> None:
    """PRX-22: the limit is the runtime's, and so are the words."""
    found = both.same(method, b"\x0a" + bytes(64 << 20))

    assert found.code == "RESOURCE_EXHAUSTED"
    assert both.same("Version", pb.VersionRequest()).code == "OK"


def test_a_field_of_a_newer_kubelet_passes(both: Both) -> None:
    """PRX-21."""
    request = pb.ContainerStatusRequest(container_id=both.container_id).SerializeToString() + UNKNOWN_FIELD

    assert both.same("ContainerStatus", request).code == "OK"


@pytest.mark.parametrize(
    "method",
    [
        "/runtime.v1.RuntimeService/InventedTomorrow",
        "/runtime.v2.RuntimeService/Version",
        "/runtime.v1alpha2.RuntimeService/Version",
        "/runtime.v1alpha2.RuntimeService/ListContainers",
        "/containerd.services.version.v1.Version/Version",
        "/grpc.health.v1.Health/Check",
    ],
)
def test_methods_that_nobody_here_knows_pass(both: Both, method: str) -> None:
    """PRX-20: others' services, and methods of the future."""
    # Of all containers the runtime tells in the order of a Go map.
    mine = pb.ListContainersRequest(filter=pb.ContainerFilter(pod_sandbox_id=both.pod.id))
    both.same(method, mine if method.endswith("/ListContainers") else b"")


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("ImageFsInfo", pb.ImageFsInfoRequest()),
        ("ListContainerStats", pb.ListContainerStatsRequest()),
        ("ListPodSandboxStats", pb.ListPodSandboxStatsRequest()),
    ],
)
def test_figures_that_move_have_the_same_shape(both: Both, method: str, request_: object) -> None:
    """Their values are never the same twice, not even direct."""
    message = request_.SerializeToString()  # type: ignore[attr-defined]
    direct, through = ask(both.direct, method, message), ask(both.through, method, message)
    kind = getattr(pb, f"{method}Response")

    assert (direct.code, direct.initial, direct.trailing) == (through.code, through.initial, through.trailing)
    shapes = [re.sub(r"\d+", "0", str(kind.FromString(one.answer))) for one in (direct, through)]
    assert shapes[0].count("{") == shapes[1].count("{")


def test_the_url_of_an_exec_leads_to_the_runtime_itself(both: Both) -> None:
    """PRX-45: only its token differs."""
    message = pb.ExecRequest(container_id=both.container_id, cmd=["true"], stdout=True).SerializeToString()
    urls = [pb.ExecResponse.FromString(ask(path, "Exec", message).answer).url for path in (both.direct, both.through)]

    assert urls[0].rpartition("/")[0] == urls[1].rpartition("/")[0]


def test_events_arrive_as_they_do_direct(both: Both) -> None:
    """GetContainerEvents is looked into for masks, and passes where there are none."""
    seen = []
    for path in (both.direct, both.through):
        with grpc.insecure_channel(f"unix://{path}", options=OPTIONS) as channel:
            stream = channel.unary_stream(RUNTIME + "GetContainerEvents")(b"", timeout=1)
            try:
                seen.append((list(stream), "OK"))
            except grpc.RpcError as error:
                # A runtime that sees the deadline first ends the stream itself, in its own word.
                seen.append(([], error.code().name.replace("CANCELLED", "DEADLINE_EXCEEDED")))

    assert seen[0] == seen[1]


def test_a_client_in_go_with_large_streams_both_ways(both: Both, lab: Lab, tmp_path: Path) -> None:
    """PRX-20, PRX-22: containerd's own tool, over services that the proxy does not know: its compressed headers, an
    image read as a stream, and written as one."""
    through = ["-a", str(both.through), "-n", "k8s.io"]
    archive, twice = tmp_path / "image.tar", tmp_path / "again.tar"
    large = lab.push(Image.sized("node/large", 40_000_000))
    lab.cri.pull(large)
    ctr = lab.programs["ctr"]

    def run(*arguments: str) -> str:
        done = subprocess.run([ctr, *arguments], check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    direct = ["-a", str(both.direct), "-n", "k8s.io"]
    run(*through, "images", "export", str(archive), large)
    run(*direct, "images", "export", str(twice), large)
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (archive, twice)]
    lab.cri.remove_image(large)
    run(*through, "images", "import", "--no-unpack", str(archive))

    assert digests[0] == digests[1]
    assert archive.stat().st_size > 40_000_000
    assert large in run(*through, "images", "ls", "-q")
    assert run(*through, "version") == run(*direct, "version")
    lab.cri.remove_image(large)


def test_every_method_of_the_table_is_in_this_file() -> None:
    """The table is the one of the drivers; what changes something is in ERRORS or in the kubelet's own tests."""
    text = Path(__file__).read_text("utf-8")

    assert [one.name for one in methods.ALL if f'"{one.name}"' not in text] == []
