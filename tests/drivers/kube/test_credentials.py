# SPDX-License-Identifier: Apache-2.0
"""Tokens, files that rotate, exec plugins as real child processes, certificates; and that none of it is ever shown."""

import asyncio
import base64
import dataclasses
import json
import os
import ssl
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.drivers.kube import errors
from agent.drivers.kube.access import Cluster, ExecCommand, KubeAccess, Pem, Secret, User
from agent.drivers.kube.credentials import Credentials
from agent.drivers.kube.exec_plugin import run_plugin
from agent.drivers.kube.kubeconfig import load_kubeconfig
from agent.drivers.kube.resource import NODES, SERVICES, Disconnected, Replaced
from agent.drivers.kube.tls import ClientIdentity, TlsContexts
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import Certificates, make_certificates
from tests.drivers.kube.following import QuickClock, access_to, client_of, feeding

V1 = "client.authentication.k8s.io/v1"
SECRET = "s3cr3t-never-shown"
CLUSTER = Cluster(servers=("https://10.0.0.1:6443",))


def plugin_that(tmp_path: Path, code: str, **options) -> ExecCommand:
    """A plugin that is a small Python program."""
    script = tmp_path / "plugin.py"
    script.write_text("import json, os, sys, time\n" + textwrap.dedent(code))
    settings = {"where": "kubeconfig:9: users[0].user.exec", "api_version": V1, "arguments": (str(script),), **options}
    return ExecCommand(command=sys.executable, **settings)


def prints(version: str = V1, **status: str) -> str:
    return f"print({json.dumps({'kind': 'ExecCredential', 'apiVersion': version, 'status': status})!r})"


def credentials_of(plugin: ExecCommand, clock: QuickClock | None = None) -> Credentials:
    access = KubeAccess(source="test", cluster=CLUSTER, user=User(plugin=plugin))
    return Credentials(access, clock or QuickClock(), 5.0)


async def test_a_token_in_the_kubeconfig_is_read_again_after_a_refusal(tmp_path: Path) -> None:
    """As it is renewed there; a file that cannot be read, or says the same, brings nothing."""
    path = tmp_path / "kubeconfig"

    def write(token: str) -> None:
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
            f"clusters: [{{name: c, cluster: {{server: 'https://a'}}}}]\n"
            f"users: [{{name: u, user: {{token: {token}}}}}]\n"
        )

    write("one")
    credentials = Credentials(load_kubeconfig(path), QuickClock())
    first = await credentials.current()
    assert not credentials.refused(first)
    path.write_text("not a kubeconfig")
    assert not credentials.refused(first)
    write("two")
    assert (await credentials.current()).token.reveal() == b"one"
    assert credentials.refused(first)
    assert (await credentials.current()).token.reveal() == b"two"


async def test_token_file_is_opened_again_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    credentials = Credentials(KubeAccess(source="t", cluster=CLUSTER, user=User(token_file=path)), QuickClock())
    first = await credentials.current()
    other = tmp_path / "other"
    other.write_text("two")
    other.replace(path)
    second = await credentials.current()

    assert [first.token.reveal(), second.token.reveal()] == [b"one", b"two"]


async def test_token_stays_while_its_file_is_gone_or_empty(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    credentials = Credentials(KubeAccess(source="t", cluster=CLUSTER, user=User(token_file=path)), QuickClock())
    presented = await credentials.current()
    path.write_text("")
    assert (await credentials.current()).token.reveal() == b"one"
    path.unlink()

    assert (await credentials.current()).token.reveal() == b"one"
    assert not credentials.refused(presented)


@pytest.mark.parametrize("content", [None, "", " \n", "two words", "x" * 100_000])
async def test_token_file_that_never_held_a_token_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    credentials = Credentials(KubeAccess(source="t", cluster=CLUSTER, user=User(token_file=path)), QuickClock())

    with pytest.raises(errors.CredentialsFailed, match=f"^{path}: (cannot be read|holds no token).*expected"):
        await credentials.current()


@pytest.mark.parametrize("version", [V1, "client.authentication.k8s.io/v1beta1"])
async def test_plugin_gives_a_token(tmp_path: Path, version: str) -> None:
    plugin = plugin_that(tmp_path, prints(version, token="abc"), api_version=version)

    assert (await credentials_of(plugin).current()).token.reveal() == b"abc"


async def test_plugin_sees_what_it_is_promised_and_no_terminal(tmp_path: Path) -> None:
    code = """
        info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
        told = {"info": info, "env": os.environ["EXTRA"], "args": sys.argv[1:], "stdin": sys.stdin.read()}
        with open(os.environ["OUT"], "w") as out:
            json.dump(told, out)
    """
    code = textwrap.dedent(code) + prints(token="abc")
    out = tmp_path / "out"
    plugin = plugin_that(tmp_path, code, environment={"EXTRA": "a;b $c", "OUT": str(out)}, is_given_cluster=True)
    plugin = dataclasses.replace(
        plugin, arguments=(*plugin.arguments, "$(id)", "x y"), cluster_config={"audience": "z"}
    )
    cluster = replace(CLUSTER, ca=Pem("x", None, Secret(b"PEM")), server_name="kubernetes")
    await run_plugin(plugin, cluster, 5.0)
    told = json.loads(out.read_text())

    assert told["info"]["spec"] == {
        "interactive": False,
        "cluster": {
            "server": "https://10.0.0.1:6443",
            "tls-server-name": "kubernetes",
            "certificate-authority-data": base64.b64encode(b"PEM").decode(),
            "config": {"audience": "z"},
        },
    }
    assert (told["env"], told["args"], told["stdin"]) == ("a;b $c", ["$(id)", "x y"], "")


async def test_plugin_runs_once_for_many_and_again_after_expiry(tmp_path: Path) -> None:
    clock = QuickClock()
    count = tmp_path / "count"
    expiry = "2027-01-15T09:00:00Z"
    code = 'open(os.environ["COUNT"], "a").write("x")\n' + prints(token="abc", expirationTimestamp=expiry)
    credentials = credentials_of(plugin_that(tmp_path, code, environment={"COUNT": str(count)}), clock)
    await asyncio.gather(*(credentials.current() for _ in range(5)))
    assert count.read_text() == "x"
    clock.moved_s = 3585.0
    await credentials.current()
    assert count.read_text() == "x"
    clock.moved_s = 3591.0
    await credentials.current()

    assert count.read_text() == "xx"


async def test_plugin_runs_again_after_a_401_but_once_for_all(tmp_path: Path) -> None:
    count = tmp_path / "count"
    code = 'open(os.environ["COUNT"], "a").write("x")\n' + prints(token="abc")
    credentials = credentials_of(plugin_that(tmp_path, code, environment={"COUNT": str(count)}))
    first = await credentials.current()
    assert credentials.refused(first)
    second = await credentials.current()
    assert credentials.refused(replace(first, token=Secret(b"older")))
    await credentials.current()

    assert second.token == first.token
    assert count.read_text() == "xx"


FAILING = [
    (f'print("{SECRET}"); print("{SECRET}", file=sys.stderr); sys.exit(3)', "ended with exit code 3; run it by hand"),
    (f'print("{SECRET}")', "did not print an ExecCredential"),
    (prints("client.authentication.k8s.io/v1beta1", token=SECRET), f"expected ExecCredential of {V1}"),
    (prints(), "gave neither a token nor a client certificate"),
    (prints(clientKeyData=SECRET), "gave only one of clientCertificateData and clientKeyData"),
    (prints(token=f"{SECRET}\n"), "gave a token with invalid characters"),
    (prints(token=SECRET, expirationTimestamp="soon"), "did not print an ExecCredential"),
    (f'print("{SECRET}" * 100000)', "printed more than 1048576 bytes"),
    ("time.sleep(60)", "did not finish within 0 s and was killed"),
]


@pytest.mark.parametrize(("code", "text"), FAILING)
async def test_failing_plugin_is_named_and_never_quoted(tmp_path: Path, code: str, text: str) -> None:
    plugin = plugin_that(tmp_path, code, install_hint="see the wiki")
    deadline_s = 0.2 if "sleep" in code else 5.0

    with pytest.raises(errors.CredentialsFailed) as raised:
        await run_plugin(plugin, CLUSTER, deadline_s)
    message = str(raised.value)

    assert message.startswith("kubeconfig:9: users[0].user.exec: ")
    assert text in message
    assert message.endswith("; see the wiki")
    assert SECRET not in message


async def test_plugin_that_is_not_installed_is_named() -> None:
    plugin = ExecCommand(where="f:1: exec", command="kepd-no-such-program", api_version=V1)

    with pytest.raises(errors.CredentialsFailed, match="cannot be started: No such file or directory"):
        await run_plugin(plugin, CLUSTER, 1.0)


async def test_plugin_that_is_too_slow_leaves_no_process_behind(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    with pytest.raises(errors.CredentialsFailed):
        await run_plugin(plugin_that(tmp_path, code), CLUSTER, 0.3)

    if pid_file.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)


async def test_failing_plugin_is_an_outage_that_heals(server: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    code = f"""
        if not os.path.exists({str(token)!r}):
            sys.exit(1)
    """
    plugin = plugin_that(tmp_path, textwrap.dedent(code) + prints(token="good-token"))
    access = replace(access_to(server), user=User(plugin=plugin))
    async with client_of(server, access=access) as client, feeding(client.follow(SERVICES)) as feed:
        told = await feed.until(Disconnected)
        token.touch()
        await feed.until(Replaced)

    assert isinstance(told.error, errors.CredentialsFailed)


def certificate_user(certificates: Certificates, *, as_data: bool) -> User:
    def pem(path: Path) -> Pem:
        return Pem(str(path), None, Secret(path.read_bytes())) if as_data else Pem(str(path), path)

    return User(certificate=pem(certificates.client_certificate), key=pem(certificates.client_key))


@pytest.mark.parametrize("as_data", [True, False])
async def test_client_certificate_is_shown_to_the_server(server: ApiServer, as_data: bool) -> None:
    access = replace(access_to(server), user=certificate_user(server.certificates, as_data=as_data))
    async with client_of(server, access=access) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)

    assert server.seen[0].user == "kepd"
    assert "Authorization" not in server.seen[0].headers


async def test_client_certificate_of_a_plugin_is_shown_to_the_server(server: ApiServer, tmp_path: Path) -> None:
    certificates = server.certificates
    code = prints(
        clientCertificateData=certificates.client_certificate.read_text(),
        clientKeyData=certificates.client_key.read_text(),
    )
    access = replace(access_to(server), user=User(plugin=plugin_that(tmp_path, code)))
    async with client_of(server, access=access) as client, feeding(client.follow(SERVICES)) as feed:
        await feed.until(Replaced)

    assert server.seen[0].user == "kepd"


async def test_replaced_certificate_files_are_used_for_new_connections(server: ApiServer, tmp_path: Path) -> None:
    certificates = server.certificates
    old, new = (
        make_certificates(_made(tmp_path / "old"), "old"),
        ClientIdentity(Pem("c", tmp_path / "c.crt"), Pem("k", tmp_path / "c.key")),
    )
    for source, target in ((old.client_certificate, "c.crt"), (old.client_key, "c.key")):
        (tmp_path / target).write_bytes(source.read_bytes())
    contexts = TlsContexts(Cluster(servers=("https://x",)))
    first = contexts.current(new)
    assert contexts.current(new) is first
    (tmp_path / "c.crt").write_bytes(certificates.client_certificate.read_bytes())
    assert contexts.current(new) is first, "certificate and key do not fit together yet"
    (tmp_path / "c.key").write_bytes(certificates.client_key.read_bytes())

    assert contexts.current(new) is not first


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


async def test_server_of_another_authority_is_refused_with_the_reason(server: ApiServer, tmp_path: Path) -> None:
    other = make_certificates(tmp_path)
    cluster = replace(access_to(server).cluster, ca=Pem("ca", other.ca))
    async with client_of(server, access=replace(access_to(server), cluster=cluster)) as client:
        with pytest.raises(
            errors.Unreachable,
            match=r"cannot connect: its certificate is refused, self.signed .*check certificate-authority",
        ):
            await client.get(NODES, "n")

    assert server.seen == []


async def test_server_may_be_left_unverified(server: ApiServer) -> None:
    cluster = replace(access_to(server).cluster, ca=None, is_verified=False)
    async with client_of(server, access=replace(access_to(server), cluster=cluster)) as client:
        with pytest.raises(errors.Missing, match='nodes "n" not found'):
            await client.get(NODES, "n")


@pytest.mark.parametrize(("name", "is_good"), [("kubernetes.default.svc", True), ("other.example", False)])
async def test_server_is_verified_under_the_name_that_is_given(server: ApiServer, name: str, is_good: bool) -> None:
    """`tls-server-name`."""
    cluster = replace(access_to(server).cluster, server_name=name)
    async with client_of(server, access=replace(access_to(server), cluster=cluster)) as client:
        with pytest.raises(errors.Missing if is_good else errors.Unreachable):
            await client.get(NODES, "n")


async def test_ipv6_server_is_reached(certificates: Certificates) -> None:
    server = ApiServer(certificates)
    server.host = "::1"
    await server.start()
    async with client_of(server) as client:
        with pytest.raises(errors.Missing):
            await client.get(NODES, "n")
    await server.stop()

    assert server.url.startswith("https://[::1]:")


async def test_token_is_not_sent_without_tls() -> None:
    async with serving(None) as server, client_of(server) as client:
        with pytest.raises(errors.Denied):
            await client.get(NODES, "n")

    assert "Authorization" not in server.seen[0].headers


@pytest.mark.parametrize("which", ["ca", "key"])
def test_file_that_holds_no_certificate_or_key_is_named(tmp_path: Path, certificates: Certificates, which: str) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text(SECRET)
    pem = Pem(f"kubeconfig:3: clusters[0]: {junk}", junk)
    cluster = replace(CLUSTER, ca=pem) if which == "ca" else CLUSTER
    identity = ClientIdentity(Pem("c", certificates.client_certificate), pem) if which == "key" else None

    with pytest.raises(errors.CredentialsFailed, match=r"^kubeconfig:3: clusters\[0\]: .*junk.pem: .*PEM") as raised:
        TlsContexts(cluster).current(identity)
    assert SECRET not in str(raised.value)


def test_key_with_a_password_is_refused_without_asking(tmp_path: Path, certificates: Certificates) -> None:
    """OpenSSL would ask on the terminal and hang the daemon."""
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkcs8", "-topk8", "-in", str(certificates.client_key), "-passout", "pass:x", "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    identity = ClientIdentity(Pem("c", certificates.client_certificate), Pem(str(locked), locked))

    with pytest.raises(errors.CredentialsFailed, match="without a password"):
        TlsContexts(CLUSTER).current(identity)


def test_keys_given_as_content_touch_no_disk(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = ssl.SSLContext.load_cert_chain

    def spy(context: ssl.SSLContext, path: str, **options) -> None:
        seen.append(str(path))
        real(context, path, **options)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    user = certificate_user(certificates, as_data=True)
    TlsContexts(CLUSTER).current(ClientIdentity(user.certificate, user.key))

    assert seen[0].startswith("/proc/self/fd/")


async def test_page_of_a_proxy_that_echoes_the_token_is_not_repeated(server: ApiServer) -> None:
    echo = b'{"kind":"Status","message":"bad header Authorization: Bearer good-token","code":400}'
    server.answer_next(echo, status=400)
    server.fail_next(502, text="<html>Authorization: Bearer good-token</html>")
    async with client_of(server) as client:
        with pytest.raises(errors.Unprocessable) as first:
            await client.get(NODES, "n")
        with pytest.raises(errors.ServerFailed) as second:
            await client.get(NODES, "n")

    assert "good-token" not in f"{first.value} {second.value} {first.value!r} {client!r}"
    assert first.value.__cause__ is None


@pytest.mark.parametrize("as_data", [True, False])
def test_comments_beside_certificates_may_be_in_any_language(tmp_path: Path, *, as_data: bool) -> None:
    """FS-12: as OpenSSL takes them; within a certificate they are still wrong."""
    ca = make_certificates(tmp_path).ca
    whole = ca.read_bytes()
    texts = {"comment": "# Prüfstelle\n".encode() + whole, "within": whole.replace(b"\nMI", "\nMIü".encode(), 1)}

    def authority(name: str) -> Pem:
        (tmp_path / name).write_bytes(texts[name])
        return Pem("x", None, Secret(texts[name])) if as_data else Pem("x", tmp_path / name)

    assert len(TlsContexts(replace(CLUSTER, ca=authority("comment"))).current(None).get_ca_certs()) == 1
    with pytest.raises(errors.CredentialsFailed, match="holds no certificate"):
        TlsContexts(replace(CLUSTER, ca=authority("within"))).current(None)
