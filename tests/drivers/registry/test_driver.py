# SPDX-License-Identifier: Apache-2.0
"""The size probe against a registry on loopback: what it asks, whom it tells what, and that it never fails loudly."""

import asyncio
import gzip
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from agent.drivers.registry.driver import RegistrySizes
from agent.model.images.credential import Credential, SecretText
from tests.drivers.registry.registry_server import TOKEN, RegistryServer, manifest_of
from tests.fakes.clock import FakeClock

PASSWORD = "hunter2-secret"
LOGIN = Credential(username="paul", password=SecretText(PASSWORD))
IMAGE = manifest_of(100, 2_000, 30_000)
IMAGE_BYTES = 32_100


def failing(status: int, **headers: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers=headers, text="secret of the server")

    return answer


def redirecting(target: str, status: int = 307) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    return failing(status, Location=target)


async def probe_and_log(
    sizes: RegistrySizes, reference: str, credential: Credential | None = None
) -> tuple[int | None, list[dict[str, Any]]]:
    with capture_logs() as logs:
        size_bytes = await sizes.size_bytes(reference, credential)
    return size_bytes, [dict(line) for line in logs]


# what it adds up


async def test_manifest_gives_config_and_layers(registry: RegistryServer, sizes: RegistrySizes) -> None:
    """IMG-S10: what the scheduler divides by the rate."""
    registry.put("team/web", "1", IMAGE)

    assert await sizes.size_bytes(f"{registry.address}/team/web:1", None) == IMAGE_BYTES
    assert registry.paths == ["/v2/team/web/manifests/1"]
    assert "application/vnd.oci.image.index.v1+json" in registry.seen[0].headers["Accept"]


async def test_digest_is_asked_for_rather_than_the_tag(registry: RegistryServer, sizes: RegistrySizes) -> None:
    digest = registry.put("web", "1", IMAGE)

    assert await sizes.size_bytes(f"{registry.address}/web:other@{digest}", None) == IMAGE_BYTES
    assert registry.paths == [f"/v2/web/manifests/{digest}"]


async def test_index_is_followed_to_the_manifest_of_this_machine(registry: RegistryServer, clock: FakeClock) -> None:
    entries = {
        "unknown/unknown": manifest_of(1),
        "linux/arm64/v8": manifest_of(10, 500),
        "linux/amd64": IMAGE,
        "linux/arm/v6": manifest_of(20, 600),
    }
    registry.put_index("web", "1", entries)
    found = {}
    for machine in ("x86_64", "aarch64", "armv7l", "s390x"):
        driver = RegistrySizes(machine=machine, clock=clock)
        found[machine] = await driver.size_bytes(f"{registry.address}/web:1", None)
        await driver.close()

    assert found == {"x86_64": IMAGE_BYTES, "aarch64": 510, "armv7l": 620, "s390x": None}


async def test_index_of_an_index_is_followed_but_not_for_ever(registry: RegistryServer, sizes: RegistrySizes) -> None:
    inner = registry.put_index("web", "inner", {"linux/amd64": IMAGE})
    platform = {"os": "linux", "architecture": "amd64"}
    outer = registry.put("web", "outer", {"manifests": [{"digest": inner, "size": 1, "platform": platform}]})
    registry.put("web", "deep", {"manifests": [{"digest": outer, "size": 1, "platform": platform}]})

    assert await sizes.size_bytes(f"{registry.address}/web:outer", None) == IMAGE_BYTES
    assert await sizes.size_bytes(f"{registry.address}/web:deep", None) is None


async def test_no_blob_is_fetched_and_nothing_but_get_is_sent(registry: RegistryServer, sizes: RegistrySizes) -> None:
    registry.put_index("web", "1", {"linux/amd64": IMAGE})
    await sizes.size_bytes(f"{registry.address}/web:1", None)

    assert {(one.method, "/manifests/" in one.path) for one in registry.seen} == {("GET", True)}


# logins


async def test_bearer_token_is_got_with_the_password(registry: RegistryServer, sizes: RegistrySizes) -> None:
    registry.asks, registry.login = "bearer", ("paul", PASSWORD)
    registry.put_index("team/web", "1", {"linux/amd64": IMAGE})

    assert await sizes.size_bytes(f"{registry.address}/team/web:1", LOGIN) == IMAGE_BYTES
    token = [one for one in registry.seen if one.path == "/token"]
    assert [one.query for one in token] == [(("service", "registry.test"), ("scope", "repository:team/web:pull"))]
    assert "Authorization" not in registry.seen[0].headers
    basic = [one.path for one in registry.seen if one.headers.get("Authorization", "").startswith("Basic")]
    assert basic == ["/token"]


async def test_bearer_token_of_a_guest(registry: RegistryServer, sizes: RegistrySizes) -> None:
    registry.asks = "bearer"
    registry.put("web", "1", IMAGE)

    assert await sizes.size_bytes(f"{registry.address}/web:1", None) == IMAGE_BYTES


async def test_identity_token_is_exchanged(registry: RegistryServer, sizes: RegistrySizes) -> None:
    registry.asks, registry.login, registry.refresh_token = "bearer", ("paul", "other"), "long-lived-secret"
    registry.put("web", "1", IMAGE)
    credential = Credential(username="", identity_token=SecretText("long-lived-secret"))

    assert await sizes.size_bytes(f"{registry.address}/web:1", credential) == IMAGE_BYTES
    post = [one for one in registry.seen if one.method == "POST"]
    assert [one.form["scope"] for one in post] == ["repository:web:pull"]
    assert "long-lived-secret" not in str([(one.path, one.query, one.headers) for one in registry.seen])


async def test_basic_login(registry: RegistryServer, sizes: RegistrySizes) -> None:
    registry.asks, registry.login = "basic", ("paul", PASSWORD)
    registry.put("web", "1", IMAGE)

    assert await sizes.size_bytes(f"{registry.address}/web:1", LOGIN) == IMAGE_BYTES


async def test_wrong_password_is_presented_once(registry: RegistryServer, sizes: RegistrySizes) -> None:
    registry.asks, registry.login = "basic", ("paul", "other")
    registry.put("web", "1", IMAGE)

    size_bytes, logs = await probe_and_log(sizes, f"{registry.address}/web:1", LOGIN)
    assert (size_bytes, len(registry.seen)) == (None, 2)
    assert [line["reason"] for line in logs] == ["the registry answered with status 401, expected 200"]


@pytest.mark.parametrize(
    "realm",
    ["http://192.0.2.1/token", "ftp://127.0.0.1/token", "https://me:too@127.0.0.1/token", "//[", "http://[::1]:x/"],
)
async def test_password_goes_to_no_token_service_that_others_can_read(
    registry: RegistryServer, sizes: RegistrySizes, realm: str
) -> None:
    registry.asks, registry.login, registry.realm = "bearer", ("paul", PASSWORD), realm
    registry.put("web", "1", IMAGE)

    assert await sizes.size_bytes(f"{registry.address}/web:1", LOGIN) is None
    assert registry.with_header("Authorization") == []


async def test_registry_with_mirrors_is_not_asked(registry: RegistryServer, clock: FakeClock) -> None:
    """IMG-R01: the runtime knows which hosts, certificates and headers; a probe of ours would differ."""
    registry.put("web", "1", IMAGE)
    driver = RegistrySizes(machine="x86_64", clock=clock, base_url=lambda _name: "")
    size_bytes, logs = await probe_and_log(driver, f"{registry.address}/web:1", LOGIN)
    await driver.close()

    assert (size_bytes, registry.seen) == (None, [])
    assert logs[0]["reason"] == "a hosts.toml of the runtime says where it is asked"


# redirects


async def test_redirect_to_another_host_gets_no_credentials(
    registry: RegistryServer, stranger: RegistryServer, sizes: RegistrySizes
) -> None:
    """registry.k8s.io answers so: to a bucket near the caller."""
    registry.asks, registry.login = "basic", ("paul", PASSWORD)
    registry.put("web", "1", IMAGE)
    stranger.put("web", "1", IMAGE)
    let_in = registry.answer

    async def answer(request: web.Request) -> web.StreamResponse:
        if "Authorization" in request.headers:
            return web.Response(status=307, headers={"Location": f"http://{stranger.address}/v2/web/manifests/1"})
        registry.fault = None
        try:
            return await let_in(request)
        finally:
            registry.fault = answer

    registry.fault = answer

    assert await sizes.size_bytes(f"{registry.address}/web:1", LOGIN) == IMAGE_BYTES
    assert len(registry.with_header("Authorization")) == 1
    assert stranger.paths == ["/v2/web/manifests/1"]
    assert stranger.with_header("Authorization") == []


@pytest.mark.parametrize("asks", ["basic", "bearer"])
async def test_challenge_of_another_host_is_not_answered(
    registry: RegistryServer, stranger: RegistryServer, sizes: RegistrySizes, asks: str
) -> None:
    registry.fault = redirecting(f"http://{stranger.address}/v2/web/manifests/1")
    stranger.asks, stranger.login = asks, ("paul", PASSWORD)
    stranger.put("web", "1", IMAGE)

    assert await sizes.size_bytes(f"{registry.address}/web:1", LOGIN) is None
    assert stranger.with_header("Authorization") == []
    assert stranger.paths == ["/v2/web/manifests/1"]


@pytest.mark.parametrize("target", ["", "/v2/again", "http://192.0.2.1/v2/", "file:///etc/passwd", "https://a:b@h/"])
async def test_redirects_that_lead_nowhere_end(registry: RegistryServer, sizes: RegistrySizes, target: str) -> None:
    registry.fault = redirecting(target)

    assert await sizes.size_bytes(f"{registry.address}/web:1", LOGIN) is None
    assert len(registry.seen) <= 4


async def test_token_service_that_redirects_is_not_followed(
    registry: RegistryServer, stranger: RegistryServer, sizes: RegistrySizes
) -> None:
    registry.asks, registry.realm = "bearer", f"http://{stranger.address}/elsewhere"
    stranger.fault = redirecting(f"http://{registry.address}/token")

    assert await sizes.size_bytes(f"{registry.address}/web:1", LOGIN) is None
    assert registry.paths == ["/v2/web/manifests/1"]


# failures


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_registry_that_fails_rests_a_minute(
    registry: RegistryServer, sizes: RegistrySizes, clock: FakeClock, status: int
) -> None:
    registry.put("web", "1", IMAGE)
    registry.fault = failing(status)
    assert await sizes.size_bytes(f"{registry.address}/web:1", None) is None
    asked = len(registry.seen)
    registry.fault = None
    await clock.advance(59.9)
    assert await sizes.size_bytes(f"{registry.address}/web:1", None) is None
    assert len(registry.seen) == asked
    await clock.advance(0.2)

    assert await sizes.size_bytes(f"{registry.address}/web:1", None) == IMAGE_BYTES


async def test_image_that_is_missing_does_not_make_its_registry_rest(
    registry: RegistryServer, sizes: RegistrySizes
) -> None:
    registry.put("web", "1", IMAGE)

    assert await sizes.size_bytes(f"{registry.address}/web:none", None) is None
    assert await sizes.size_bytes(f"{registry.address}/web:1", None) == IMAGE_BYTES


async def test_one_registry_resting_does_not_stop_another(
    registry: RegistryServer, stranger: RegistryServer, sizes: RegistrySizes
) -> None:
    registry.fault = failing(503)
    stranger.put("web", "1", IMAGE)
    await sizes.size_bytes(f"{registry.address}/web:1", None)

    assert await sizes.size_bytes(f"{stranger.address}/web:1", None) == IMAGE_BYTES


async def test_huge_body_is_left_after_four_mebibytes(registry: RegistryServer, sizes: RegistrySizes) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while sent < 1 << 30:
            await response.write(b" " * (1 << 16))
            sent += 1 << 16
        return response

    registry.fault = endless
    size_bytes, logs = await probe_and_log(sizes, f"{registry.address}/web:1")

    assert size_bytes is None
    assert [line["reason"] for line in logs] == ["the answer is larger than 4 MiB"]
    assert sent < 64 << 20


async def test_compressed_body_is_not_blown_up(registry: RegistryServer, sizes: RegistrySizes) -> None:
    compressed = gzip.compress(b" " * (64 << 20), compresslevel=1)

    async def bomb(request: web.Request) -> web.StreamResponse:
        return web.Response(body=compressed, headers={"Content-Encoding": "gzip"})

    registry.fault = bomb
    size_bytes, logs = await probe_and_log(sizes, f"{registry.address}/web:1")

    assert size_bytes is None
    assert [line["reason"] for line in logs] == ["the answer is neither a manifest with sizes nor an index"]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_slow_registry_is_left_and_rests(registry: RegistryServer, clock: FakeClock, has_begun: bool) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if has_begun:
            await response.prepare(request)
            await response.write(b"{")
        await asyncio.sleep(30)
        return response

    registry.fault = slow
    driver = RegistrySizes(machine="x86_64", clock=clock, probe_s=0.5)
    size_bytes, logs = await probe_and_log(driver, f"{registry.address}/web:1")
    registry.fault = None

    assert size_bytes is None
    assert [line["reason"] for line in logs] == ["no answer within 0.5 s"]
    assert await driver.size_bytes(f"{registry.address}/web:1", None) is None
    assert len(registry.seen) == 1
    await driver.close()


async def test_whoever_asks_may_give_up_first(registry: RegistryServer, sizes: RegistrySizes) -> None:
    """STY-33: being cancelled is no failure of the registry."""

    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    registry.fault = slow
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await sizes.size_bytes(f"{registry.address}/web:1", None)
    registry.fault = None
    registry.put("web", "1", IMAGE)

    assert await sizes.size_bytes(f"{registry.address}/web:1", None) == IMAGE_BYTES


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"schemaVersion":1,"fsLayers":[{"blobSum":"sha256:00"}]}',
        b'{"config":{"digest":"a","size":-1},"layers":[]}',
        b'{"config":{"digest":"a","size":1e30},"layers":[]}',
        b'{"config":{"digest":"a","size":"9"},"layers":[]}',
        b'{"config":{"digest":"a"},"layers":[]}',
        b'{"manifests":[]}',
        b'{"manifests":[{"digest":"../../../v2/other/blobs/x","size":1}]}',
    ],
)
async def test_answer_that_is_no_manifest_is_no_size(
    registry: RegistryServer, sizes: RegistrySizes, body: bytes
) -> None:
    registry.put("web", "1", body)

    size_bytes, logs = await probe_and_log(sizes, f"{registry.address}/web:1")
    assert size_bytes is None
    assert [(line["event"], line["log_level"], line["v"]) for line in logs] == [("image_size_probe_failed", "debug", 3)]
    assert len(registry.seen) == 1


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token":""}', b'{"token":"a\\r\\nX: y"}', b'{"token":7}'])
async def test_answer_that_is_no_token_is_no_size(
    registry: RegistryServer, stranger: RegistryServer, sizes: RegistrySizes, body: bytes
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    registry.asks, registry.realm = "bearer", f"http://{stranger.address}/auth"
    stranger.fault = answer
    size_bytes, logs = await probe_and_log(sizes, f"{registry.address}/web:1")

    assert size_bytes is None
    assert logs[0]["reason"].startswith("the token service's answer ")


@pytest.mark.parametrize("challenge", ["", "Negotiate", "Bearer", 'Bearer realm=""', 'Basic realm="x', "=,=,,", '"'])
async def test_challenge_that_nobody_can_answer_is_no_size(
    registry: RegistryServer, sizes: RegistrySizes, challenge: str
) -> None:
    registry.fault = failing(401, **{"WWW-Authenticate": challenge})

    assert await sizes.size_bytes(f"{registry.address}/web:1", None) is None
    assert len(registry.seen) == 1


async def test_registry_that_is_not_there(sizes: RegistrySizes, free_port: int) -> None:
    size_bytes, logs = await probe_and_log(sizes, f"127.0.0.1:{free_port}/web:1")

    assert size_bytes is None
    assert logs[0]["registry"] == f"127.0.0.1:{free_port}"
    assert logs[0]["reason"].startswith("cannot connect")


async def test_registry_without_tls_where_tls_is_expected(registry: RegistryServer, clock: FakeClock) -> None:
    driver = RegistrySizes(machine="x86_64", clock=clock, base_url=lambda name: f"https://{name}")
    size_bytes, logs = await probe_and_log(driver, f"{registry.address}/web:1")
    await driver.close()

    assert size_bytes is None
    assert [line["reason"] for line in logs] == ["TLS failed, or the certificate is not trusted"]


async def test_proxy_of_the_environment_is_not_used(
    registry: RegistryServer, stranger: RegistryServer, sizes: RegistrySizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{stranger.address}")
    registry.put("web", "1", IMAGE)

    assert await sizes.size_bytes(f"{registry.address}/web:1", None) == IMAGE_BYTES
    assert stranger.seen == []


# secrets, cost, end


@pytest.mark.parametrize("asks", ["basic", "bearer"])
@pytest.mark.parametrize("is_refused", [False, True])
async def test_secrets_are_in_no_line_and_no_repr(
    registry: RegistryServer, sizes: RegistrySizes, asks: str, is_refused: bool
) -> None:
    registry.asks, registry.login = asks, ("paul", "other" if is_refused else PASSWORD)

    _, logs = await probe_and_log(sizes, f"{registry.address}/web:1", LOGIN)
    told = str(logs) + repr(sizes) + repr(vars(sizes))
    assert len(logs) == 1
    assert not [secret for secret in (PASSWORD, TOKEN, "cGF1b", "scope", "secret of the server") if secret in told]


async def test_after_close_nothing_is_asked(registry: RegistryServer, sizes: RegistrySizes) -> None:
    registry.put("web", "1", IMAGE)
    await sizes.size_bytes(f"{registry.address}/web:1", None)
    await sizes.close()
    await sizes.close()

    assert await sizes.size_bytes(f"{registry.address}/web:1", None) is None
    assert len(registry.seen) == 1


async def test_probes_at_the_same_time_share_one_session(registry: RegistryServer, sizes: RegistrySizes) -> None:
    registry.put("web", "1", IMAGE)
    answers = await asyncio.gather(*(sizes.size_bytes(f"{registry.address}/web:1", None) for _ in range(10)))

    assert answers == [IMAGE_BYTES] * 10


@pytest.mark.parametrize("module", ["driver", "errors", "challenge", "manifest_size"])
def test_nothing_but_a_probe_costs_aiohttp(module: str) -> None:
    """138 ms and 25 MiB on nodes where no pull ever waits."""
    code = f"import sys, agent.drivers.registry.{module}; sys.exit('aiohttp' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
