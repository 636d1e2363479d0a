# SPDX-License-Identifier: Apache-2.0
"""The decoders, their own errors, and texts from which a search begins."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC

import msgspec
from google.protobuf.message import DecodeError

from agent.api.graceful_goaway import PREFACE_BYTES, Parting
from agent.api.http import HttpServer, Page
from agent.config.strict_yaml import UnreadableYaml, parse_documents, plain
from agent.drivers.iptables.text import parse_save
from agent.drivers.kube.decoding import Decoding, decode_status
from agent.drivers.kube.errors import KubeError
from agent.drivers.kube.gunzip import Gunzip
from agent.drivers.kube.lines import LineSplitter
from agent.drivers.kube.resource import ENDPOINT_SLICES, PODS, SERVICES
from agent.drivers.probe_client.driver import _read_body, _read_head
from agent.drivers.registry.address import followed, origin_of
from agent.drivers.registry.challenge import choose_challenge, read_challenges
from agent.drivers.registry.errors import ProbeFailed
from agent.drivers.registry.manifest_size import total_bytes
from agent.images.access.dockerconfig import ConfigInvalid, read_config_file
from agent.images.access.match_key import KeyInvalid, is_match, key_of_entry
from agent.images.access.mirrors import read_hosts
from agent.images.access.provider_config import read_providers
from agent.images.view.manifest import read_diff_ids, read_index, read_manifest
from agent.model.annotation_list import AnnotationFault, parse_duration, parts_of
from agent.model.devices.plugin import PluginInfo, PluginRegistration
from agent.model.images.manifest import read_document
from agent.model.images.reference import ReferenceInvalid, parse_reference
from agent.model.quantity import QuantityError, parse_quantity
from agent.model.text.json_text import decode_json
from agent.pods.run.disk.files import _last_lines
from agent.pods.workloads.cron_job import decode_cron_record
from agent.pods.workloads.cron_schedule import latest_time, next_time, parse_schedule
from agent.pods.workloads.history import decode_history
from agent.proxy.frames.cri_bytes import masked_answer, with_timeout
from agent.proxy.frames.hpack import HeaderDecoder, HeadersInvalid
from agent.proxy.frames.huffman import HuffmanInvalid, decode_huffman
from agent.proxy.frames.layout import data_of, fragment_of, message_in, setting_in, status_of, timeout_s
from agent.proxy.frames.rewriting import Rewriting
from agent.services.objects.addresses import read_address, read_range
from agent.services.objects.reading_service import read_service
from agent.services.objects.reading_slice import read_slice
from agent.wire.cri import runtime_v1_pb2 as pb
from agent.wire.kubelet import dra_health_v1alpha1_pb2 as health_pb2
from kepd_devices.cdi.spec import parse_id, parse_spec
from kepd_devices.drivers.plugin_sockets.driver import _Told
from kepd_devices.manifest.documents import Reader
from kepd_devices.manifest.reading import read_device_objects
from kepd_devices.plan.health import BadHealth, HealthTable
from kepd_devices.plan.plugins.plugin_choice import Unusable, check_registration
from kepd_devices.plan.plugins.plugin_records import decode_grants
from kepd_devices.plan.records import decode_record
from kepd_devices.plan.registration import PluginRefused, judge


@dataclass(frozen=True, slots=True)
class Target:
    """`errors` are those that its callers handle."""

    name: str
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: Sequence[bytes]


def text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def in_pieces(data: bytes, feed: Callable[[bytes], object]) -> None:
    """Cut where the first byte says, for decoders that hear their input piece by piece."""
    step = (data[0] if data else 0) + 1
    for start in range(0, len(data), step):
        feed(data[start : start + step])


def yaml_text(data: bytes) -> object:
    documents, _ = parse_documents(data, "fuzz")
    return [plain(one) for one in documents]


def api_frames(data: bytes) -> None:
    one = Parting()
    one.from_client(bytes(PREFACE_BYTES))
    in_pieces(data, one.from_client)
    in_pieces(data, one.from_server)
    one.begin()
    one.from_client(data)
    assert one.held_bytes == sum(one.open.values()) >= 0


def http_request(data: bytes) -> None:
    server = HttpServer("", {"/": lambda query, headers: Page(200, f"{query}{headers}".encode())})
    server.answer(data)


def probe_answer(data: bytes) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        status, head = await _read_head(reader)
        await _read_body(reader, status, head)

    asyncio.run(read())


def proxy_headers(data: bytes) -> None:
    decoder = HeaderDecoder()
    for _ in range(2):
        status_of(decoder.decode(data))


def proxy_payloads(data: bytes) -> None:
    flags, payload = (data[0], data[1:]) if data else (0, b"")
    message_in(payload)
    timeout_s(payload)
    setting_in(payload, flags)
    for read in (fragment_of, data_of):
        try:
            read(flags, payload)
        except ValueError:
            continue


def proxy_rewriting(data: bytes) -> None:
    one = Rewriting()
    passed = bytearray()

    def feed(piece: bytes) -> None:
        out, _ = one.take(piece, lambda message: message)
        passed.extend(out)

    in_pieces(data, feed)
    assert len(passed) + one.waiting_bytes == len(data)


def cri_answers(data: bytes) -> None:
    for method in ("ContainerStatus", "PodSandboxStatus", "GetContainerEvents"):
        masked_answer(method, data, {"c"})


def kube_objects(data: bytes) -> None:
    for resource, convert in ((SERVICES, read_service), (ENDPOINT_SLICES, read_slice), (PODS, lambda one: one)):
        decoding = Decoding(resource, convert)
        decode_status(data)
        for read in (decoding.page, decoding.event):
            try:
                read(data)
            except KubeError:
                continue


def kube_lines(data: bytes) -> None:
    in_pieces(data, LineSplitter().feed)


def kube_gzip(data: bytes) -> None:
    one = Gunzip("fuzz")
    one.feed(data)
    while one.piece():
        pass
    one.finish()


def registry_challenge(data: bytes) -> None:
    choose_challenge(read_challenges([data.decode("latin-1")]))


def registry_manifest(data: bytes) -> None:
    read_manifest("sha256:1", data)
    read_index(data)
    read_diff_ids(data)
    document = read_document(data)
    if document is not None:
        total_bytes(document)


def registry_links(data: bytes) -> None:
    origin_of(followed("https://registry.example/v2/", data.decode("latin-1")))


def image_names(data: bytes) -> None:
    one = text(data)
    for read in (parse_reference, key_of_entry, lambda name: is_match(name, "registry.example/app")):
        try:
            read(one)
        except (ReferenceInvalid, KeyInvalid):
            continue


def small_words(data: bytes) -> None:
    one = text(data)
    read_address(one)
    read_range(one)
    parts_of(one)
    for read in (parse_duration, parse_quantity):
        try:
            read(one)
        except (AnnotationFault, QuantityError):
            continue


SLICE = {
    "metadata": {"name": "a-1", "labels": {"kubernetes.io/service-name": "a"}, "resourceVersion": "1"},
    "addressType": "IPv4", "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
    "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "hints": {"forZones": [{"name": "z"}]}}],
}  # fmt: skip
SERVICE = {
    "metadata": {"name": "a", "namespace": "b", "annotations": {"service.kubernetes.io/topology-mode": "Auto"}},
    "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "targetPort": "http", "nodePort": 30000}]},
}
OBJECTS = [
    json.dumps(one).encode()
    for item in (SLICE, SERVICE)
    for one in ({"metadata": {"resourceVersion": "1"}, "items": [item]}, {"type": "ADDED", "object": item})
]
HTTP_ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.0 302 Found\r\nLocation: /x\r\n\r\n",
)
STATUS = pb.ContainerStatusResponse(status=pb.ContainerStatus(id="c", exit_code=137)).SerializeToString()
MANIFEST = json.dumps(
    {
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "sha256:" + "a" * 64, "size": 7},
        "layers": [{"mediaType": "x", "digest": "sha256:" + "b" * 64, "size": 70}],
    }
).encode()  # fmt: skip
FRAMES = b"\0\0\x03\x01\x04\0\0\0\x01abc" + b"\0\0\x02\0\x01\0\0\0\x01xy" + b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08"
HEADERS = bytes.fromhex("828684410f7777772e6578616d706c652e636f6d408825a849e95ba97d7f8925a849e95bb8e8b4bf")

HEALTH = health_pb2.NodeWatchResourcesResponse(
    devices=[{"device": {"pool_name": "p", "device_name": "gpu-0"}, "health": "UNHEALTHY", "message": "hot"}]
).SerializeToString()
# SECURITY.md names the two whose errors include one of Python's.
CDI_FILES = (
    b'{"cdiVersion": "0.6.0", "kind": "a.example/gpu", "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}]}',
    b"cdiVersion: 1.1.0\nkind: a.example/gpu\ndevices:\n- name: x\n  containerEdits: {hooks: [{hookName: prestart}]}\n",
)
DEVICE_OBJECTS = (
    (
        b"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {requests: [{name:"
        b" r, exactly: {deviceClassName: a, selectors: [{cel: {expression: \"device.driver.matches('(a)+')\"}}]}}]}}\n"
    ),
    (
        b"apiVersion: resource.k8s.io/v1beta1\nkind: ResourceSlice\nmetadata: {name: s}\nspec: {driver: a.example,"
        b" pool: {name: p, resourceSliceCount: 1}, devices: [{name: d, basic: {attributes: {v: {version: 1.2.3}}}}]}\n"
    ),
)


def device_records(data: bytes) -> None:
    """Of claims and of plugins."""
    for decode in (decode_record, decode_grants):
        with suppress(ValueError):
            decode(data)


def device_health(data: bytes) -> None:
    told = _Told(health_pb2.NodeWatchResourcesResponse.FromString(data).devices)
    HealthTable().take(told, 0.0)


def device_registrations(data: bytes) -> None:
    """What drivers and plugins say of themselves: a word for each field."""
    words = [*text(data).split("\0"), "", "", "", ""]
    info = PluginInfo(type=words[0], name=words[1], endpoint=words[2], versions=tuple(words[3:]))
    with suppress(PluginRefused):
        judge(info, "/r/a-reg.sock", 0, (), {})
    with suppress(Unusable):
        check_registration(PluginRegistration(version="v1beta1", endpoint=words[2], resource=words[1]), (), (0,))


def cron_schedules(data: bytes) -> None:
    """Those that are taken have a next time, or none."""
    decoded = parse_schedule(text(data))
    now_s = next_time(decoded, UTC, 0, 1_700_000_000)
    latest_time(decoded, UTC, 1_600_000_000, 1_700_000_000)
    if now_s is not None and now_s <= 1_700_000_000:
        raise RuntimeError(f"{now_s} is not later")


TARGETS = (
    Target("yaml", yaml_text, (UnreadableYaml,), (b"a: &x [1, *x]\n---\nb: {c: 'd'}\n", b"- !!str 1\n- ? x\n")),
    Target(
        "cron-schedule", cron_schedules, (ValueError,), (b"*/5 1-3/2,7 ? jan-MAR mon", b"@every 1h30m2.5s", b"@daily")
    ),
    Target("cron-record", decode_cron_record, (ValueError,), (b'{"namespace":"a","name":"b","jobs":[]}',)),
    Target("template-record", decode_history, (ValueError,), (b'{"kind":"a","namespace":"b","name":"c"}',)),
    Target("api-frames", api_frames, (), (FRAMES,)),
    Target("http-request", http_request, (), (b"GET /?a=b HTTP/1.1\r\nX: y\r\n\r\n",)),
    Target("probe-answer", probe_answer, (OSError, ValueError), HTTP_ANSWERS),
    Target("proxy-headers", proxy_headers, (HeadersInvalid,), (HEADERS,)),
    Target("proxy-huffman", decode_huffman, (HuffmanInvalid,), (bytes.fromhex("f1e3c2e5f23a6ba0ab90f4ff"),)),
    Target("proxy-payloads", proxy_payloads, (), (b"\x08\x02abcd\0\0", b"\0\0\0\0\0\x02ab", b"\x0010S")),
    Target("proxy-rewriting", proxy_rewriting, (), (b"\x07\0\0\0\x02ab" * 3, b"\0\0\0\xff\xff")),
    Target("cri-answers", cri_answers, (DecodeError,), (STATUS,)),
    Target("cri-timeout", lambda data: with_timeout(data, 5), (ValueError,), (b"\n\x01c\x10\x1e",)),
    Target("kube-objects", kube_objects, (), OBJECTS),
    Target("kube-lines", kube_lines, (KubeError,), (b'\x05{"a": 1}\n{"b": 2}\r\n',)),
    Target("kube-gzip", kube_gzip, (KubeError,), (bytes.fromhex("1f8b08000000000000034b4c4a06004f4d4e0303000000"),)),
    Target("registry-challenge", registry_challenge, (), (b'Bearer realm="https://a.example/t",service="b", Basic',)),
    Target("registry-manifest", registry_manifest, (ProbeFailed,), (MANIFEST,)),
    Target("registry-links", registry_links, (ProbeFailed,), (b"/v2/x?y=z", b"https://u:p@b.example:5000/[::1]")),
    Target(
        "docker-config",
        read_config_file,
        (ConfigInvalid,),
        (b'{"auths": {"a.example": {"auth": "dTpw"}}}',),
    ),
    Target(
        "provider-config",
        lambda data: read_providers([("p.yaml", data)]),
        (),
        (b"kind: CredentialProviderConfig\nproviders: [{name: a, matchImages: ['*.b'], defaultCacheDuration: 1h}]",),
    ),
    Target(
        "mirrors",
        lambda data: read_hosts("a.example", data, "hosts.toml"),
        (ValueError,),
        (b'server = "https://a"\n[host."https://m"]\ncapabilities = ["pull"]\n',),
    ),
    Target("image-names", image_names, (), (b"a.example:5000/b/c:d@sha256:" + b"e" * 64, b"*.a.example/b")),
    Target("small-words", small_words, (), (b"10.0.0.0/8", b"a=5s, b=3s", b"1.5Gi", b"fd00::1")),
    Target(
        "iptables-save", lambda data: parse_save(text(data)), (ValueError,), (b"*nat\n:A - [0:0]\n-A A -j B\nCOMMIT\n",)
    ),
    Target(
        "container-log", lambda data: _last_lines(text(data), 80, 2048), (), (b"2026-01-01T00:00:00Z stdout F a\n",)
    ),
    Target("cdi-files", lambda data: parse_spec("f", data), (), CDI_FILES),
    Target("cdi-ids", lambda data: parse_id(text(data)), (ValueError,), (b"example.com/gpu=0",)),
    Target("device-objects", lambda data: read_device_objects({"f": data}, Reader("n")), (), DEVICE_OBJECTS),
    Target("device-records", device_records, (), (b'{"version": 1, "claim": {"metadata": {"uid": "u"}}}',)),
    Target("device-health", device_health, (DecodeError, BadHealth), (HEALTH,)),
    Target("device-registrations", device_registrations, (), (b"DRAPlugin\0a.example\0/p/a.sock\0v1.DRAPlugin",)),
    Target(
        "state-file",
        lambda data: decode_json(data, object),
        (msgspec.MsgspecError, UnicodeError),
        (b'{"a": [1, "b"]}',),
    ),
)
