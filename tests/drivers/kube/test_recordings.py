# SPDX-License-Identifier: Apache-2.0
"""The test API server answers as a real 1.36.2 did.

Each recording is asked again of ours and compared: status, headers that mean something, and the body byte for byte
(the recordings of watches stop in the middle of a line, and so does the comparison).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from yarl import URL

from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import Certificates
from tests.drivers.kube.fake_objects import FakeObjects

RECORDINGS = Path(__file__).parent / "recordings"
SERVICES = "/api/v1/namespaces/rec/services"
EXACT_HEADERS = ("cache-control", "content-type", "content-length", "retry-after", "x-content-type-options")
PRESENT_HEADERS = ("audit-id", "x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid", "date")
TOKENS = {"no token": None, "bad token": "stale", "as user without rights": "powerless-token"}
LATER = 31258


@dataclass(frozen=True)
class Recording:
    """One file. `status` 0: the real server had not answered when the recording ended."""

    path: str
    token: str | None
    status: int
    headers: dict[str, str]
    body: bytes


def read_recording(name: str) -> Recording:
    head, _, body = (RECORDINGS / f"{name}.txt").read_bytes().partition(b"\n\n")
    request, *rest = head.decode().splitlines()
    asked = request.removeprefix("# request: ")
    url = urlsplit(asked)
    path = SERVICES if asked in TOKENS else url.path + (f"?{url.query}" if url.query else "")
    headers = dict(line.split(": ", 1) for line in rest[1:])
    status = int(rest[0].split()[1]) if rest else 0
    return Recording(path, TOKENS.get(asked, "good-token"), status, headers, body)


def items(name: str) -> list[dict]:
    return json.loads(read_recording(name).body)["items"]


def recorded_objects(resource_version: int = 31249) -> FakeObjects:
    """The cluster as it was when the recordings were made."""
    objects = FakeObjects(resource_version)
    for service in items("list-services"):
        objects.load("services", service)
    for endpoint_slice in items("list-endpointslices") + items("list-labelselector"):
        objects.load("endpointslices", endpoint_slice)
    for node in items("list-nodes"):
        objects.load("nodes", node)
    objects.oldest = 232
    return objects


async def ask(server: ApiServer, recording: Recording) -> tuple[int, dict[str, str], bytes]:
    headers = {"User-Agent": "curl/7.88.1"}
    if recording.token:
        headers["Authorization"] = f"Bearer {recording.token}"
    async with aiohttp.ClientSession() as session:
        url = URL(server.url + recording.path, encoded=True)
        async with session.get(url, headers=headers, ssl=False) as response:
            lowered = {name.lower(): text for name, text in response.headers.items()}
            if "watch=1" in recording.path and recording.body:
                return response.status, lowered, await response.content.readexactly(len(recording.body))
            return response.status, lowered, await response.read()


def compare(recording: Recording, status: int, headers: dict[str, str], body: bytes) -> None:
    assert recording.status == status
    for name in EXACT_HEADERS:
        assert recording.headers.get(name) == headers.get(name), name
    for name in PRESENT_HEADERS:
        assert (name in recording.headers) == (name in headers), name
    assert recording.body.decode() == body.decode()


@pytest.mark.parametrize(
    "name",
    sorted(
        path.stem for path in RECORDINGS.glob("*.txt") if path.stem not in ("watch-endpointslices", "watch-future-rv")
    ),
)
async def test_answer_is_that_of_the_recording(name: str, certificates: Certificates) -> None:
    recording = read_recording(name)
    is_later = name in ("list-future-rv", "list-labelselector")
    async with serving(certificates, recorded_objects(LATER if is_later else 31249)) as server:
        if name == "list-services-continue":
            await ask(server, read_recording("list-services-limit2"))

        compare(recording, *await ask(server, recording))


async def test_watch_shows_the_recorded_changes(certificates: Certificates) -> None:
    """The second event is cut off in the recording within its managed fields."""
    recording = read_recording("watch-endpointslices")
    first = json.loads(recording.body.splitlines()[0])["object"]
    second = json.loads(json.dumps(first))
    second["metadata"] |= {"resourceVersion": "31251", "generation": 3}
    second["metadata"]["labels"] = {**first["metadata"]["labels"], "x": "y"}
    second["metadata"]["managedFields"] = [first["metadata"]["managedFields"][0], {"manager": "kubectl-label"}]
    objects = recorded_objects()
    for changed in (first, second):
        objects.put("endpointslices", changed, is_exact=True)
    async with serving(certificates, objects) as server:
        status, headers, body = await ask(server, recording)

    compare(recording, status, headers, body)


async def test_watch_of_a_version_yet_to_come_is_not_answered(certificates: Certificates) -> None:
    recording = read_recording("watch-future-rv")
    async with serving(certificates, recorded_objects()) as server, aiohttp.ClientSession() as session:
        url = URL(server.url + recording.path, encoded=True)
        with pytest.raises(TimeoutError):
            await session.get(
                url,
                ssl=False,
                headers={"Authorization": "Bearer good-token"},
                timeout=aiohttp.ClientTimeout(total=0.2),
            )
    assert recording.status == 0
