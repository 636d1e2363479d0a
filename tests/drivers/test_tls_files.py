# SPDX-License-Identifier: Apache-2.0
"""The HTTP port by TLS: who sees what, and certificates that are renewed while it serves (OBS-09)."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.api.http import HttpServer, Page
from agent.drivers.tls_files.driver import TlsFiles
from agent.model.component import Board, State
from tests.drivers.kube.certificates import Certificates, make_certificates
from tests.fakes.clock import FakeClock

PAGES = {
    "/livez": lambda _query, _headers: Page(200, b"alive"),
    "/metrics": lambda _query, _headers: Page(200, b"x" * 3_000_000),
}


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    (tmp_path / "pki").mkdir()
    return make_certificates(tmp_path / "pki")


def files_of(certificates: Certificates, clock: FakeClock, clients: str = "") -> TlsFiles:
    folder = certificates.directory
    return TlsFiles(str(folder / "server.crt"), str(folder / "server.key"), clients, clock.now_s, "api.httpTLS")


@asynccontextmanager
async def serving(port: int, read: Callable[[], TlsFiles]) -> AsyncIterator[Board]:
    board = Board(lambda: 0.0)
    report = board.add("http", State.STARTING)
    server = HttpServer(f"127.0.0.1:{port}", PAGES, tls=lambda: read().wrap)
    task = asyncio.create_task(server.run(report))
    while board.line("http").state is State.STARTING and not task.done():
        await asyncio.sleep(0.001)
    try:
        yield board
    finally:
        task.cancel()
        await asyncio.wait([task])


async def ask(port: int, path: str, certificates: Certificates, client: Certificates | None = None) -> tuple[str, int]:
    """First line and length of the body, or the error."""
    context = ssl.create_default_context(cafile=str(certificates.ca))
    if client is not None:
        context.load_cert_chain(client.client_certificate, client.client_key)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except (ssl.SSLError, ConnectionError) as error:
        return type(error).__name__, 0
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    try:
        head, _, body = (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n\r\n")
    except (ssl.SSLError, ConnectionError) as error:
        return type(error).__name__, 0
    finally:
        writer.close()
    return head.partition(b"\r\n")[0].decode(), len(body)


async def test_pages_are_for_clients_with_a_certificate_and_signs_of_life_for_all(
    certificates: Certificates, free_port: int, tmp_path: Path
) -> None:
    """OBS-09."""
    (tmp_path / "others").mkdir()
    others = make_certificates(tmp_path / "others")
    async with serving(free_port, lambda: files_of(certificates, FakeClock(), str(certificates.ca))):
        assert await ask(free_port, "/livez", certificates) == ("HTTP/1.1 200 OK", 5)
        assert (await ask(free_port, "/metrics", certificates))[0] == "HTTP/1.1 403 Forbidden"
        assert (await ask(free_port, "/none", certificates))[0] == "HTTP/1.1 403 Forbidden"
        assert await ask(free_port, "/metrics", certificates, certificates) == ("HTTP/1.1 200 OK", 3_000_000)
        assert (await ask(free_port, "/livez", certificates, others))[0] in ("SSLError", "ConnectionResetError")
        assert (await ask(free_port, "/livez", others))[0] == "SSLCertVerificationError"


async def test_without_authorities_the_pages_are_for_all(certificates: Certificates, free_port: int) -> None:
    async with serving(free_port, lambda: files_of(certificates, FakeClock())) as board:
        assert board.line("http").message == f"https://127.0.0.1:{free_port}"
        assert await ask(free_port, "/metrics", certificates) == ("HTTP/1.1 200 OK", 3_000_000)


async def test_who_speaks_no_tls_is_let_go(
    certificates: Certificates, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OBS-13: also who says nothing, or half of a greeting."""
    monkeypatch.setattr("agent.api.http_connections.REQUEST_LIMIT_S", 0.2)
    async with serving(free_port, lambda: files_of(certificates, FakeClock())):
        for said in (b"GET /livez HTTP/1.1\r\n\r\n", b"", b"\x16\x03\x01\x02\x00\x01", b"\x00" * 20_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
            writer.write(said)
            try:
                answer = await asyncio.wait_for(reader.read(), 30)
            except ConnectionError:
                answer = b""
            writer.close()
            assert b"HTTP" not in answer
        assert await ask(free_port, "/livez", certificates) == ("HTTP/1.1 200 OK", 5)


async def test_a_certificate_that_is_renewed_is_used_from_the_next_connection_on(
    certificates: Certificates, free_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OBS-09: while its files do not fit each other, the one before is."""
    clock = FakeClock()
    (tmp_path / "new").mkdir()
    new = make_certificates(tmp_path / "new")
    folder = certificates.directory

    def put(name: str) -> None:
        (folder / f"{name}.new").write_bytes((new.directory / name).read_bytes())
        (folder / f"{name}.new").rename(folder / name)

    old_authority = Certificates(tmp_path / "old")
    old_authority.directory.mkdir()
    old_authority.ca.write_bytes(certificates.ca.read_bytes())
    async with serving(free_port, lambda: files_of(certificates, clock)):
        put("server.crt")
        for _ in range(3):
            await clock.advance(2)
            assert (await ask(free_port, "/livez", old_authority))[0] == "HTTP/1.1 200 OK"
        assert capsys.readouterr().out.count("certificate_not_renewed") == 1
        put("server.key")
        await clock.advance(2)
        assert (await ask(free_port, "/livez", new))[0] == "HTTP/1.1 200 OK"
        assert (await ask(free_port, "/livez", old_authority))[0] == "SSLCertVerificationError"
        (folder / "server.key").unlink()
        await clock.advance(2)
        assert (await ask(free_port, "/livez", new))[0] == "HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    ("spoiled", "content", "error"),
    [
        ("server.crt", None, r"api\.httpTLS\.certFile: /.*server\.crt cannot be read: No such file or directory"),
        ("server.key", None, r"api\.httpTLS\.keyFile: .*No such file"),
        ("ca.crt", None, r"api\.httpTLS\.clientCAFile: .*No such file"),
        ("server.crt", b"rubbish", r"api\.httpTLS: .* are no certificate in PEM with its key"),
        ("server.key", b"", r"api\.httpTLS: .* are no certificate in PEM with its key"),
        ("server.key", "client.key", r"api\.httpTLS: .* with its key: KEY_VALUES_MISMATCH"),
        ("ca.crt", b"rubbish", r"api\.httpTLS\.clientCAFile: .*ca\.crt has no certificates in PEM"),
    ],
)
def test_files_that_are_no_certificate_are_named(
    certificates: Certificates, spoiled: str, content: bytes | str | None, error: str
) -> None:
    path = certificates.directory / spoiled
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else (path.parent / content).read_bytes())
    with pytest.raises(OSError, match=error):
        files_of(certificates, FakeClock(), str(certificates.ca))


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(certificates: Certificates) -> None:
    key = certificates.directory / "server.key"
    command = ["openssl", "pkey", "-in", key, "-out", f"{key}.new", "-aes128", "-passout", "pass:secret"]
    subprocess.run(command, check=True, capture_output=True)
    key.with_name("server.key.new").rename(key)
    with pytest.raises(OSError, match="the key has a password"):
        files_of(certificates, FakeClock())
