# SPDX-License-Identifier: Apache-2.0
"""kubeconfig files and service accounts: what they come to, and one clear line for each that cannot work."""

import base64
import json
from pathlib import Path

import pytest

from agent.drivers.kube.access import KubeAccess, checked_server, in_cluster
from agent.drivers.kube.errors import AccessInvalid
from agent.drivers.kube.kubeconfig import find_access, load_kubeconfig

BETA = "client.authentication.k8s.io/v1beta1"
V1 = "client.authentication.k8s.io/v1"
SECRET = "s3cr3t-never-shown"


def write(tmp_path: Path, *, cluster: dict | None = None, user: dict | None = None, **top: object) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "prod"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        **top,
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document, indent=1))
    return path


def load(tmp_path: Path, **parts) -> KubeAccess:
    return load_kubeconfig(write(tmp_path, **parts))


def test_current_context_names_cluster_user_and_namespace(tmp_path: Path) -> None:
    access = load(tmp_path, user={"token": SECRET})

    assert access.cluster.servers == ("https://10.0.0.1:6443",)
    assert access.user.token.reveal() == SECRET.encode()
    assert access.source == str(tmp_path / "kubeconfig")


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    user = {"client-certificate": "pki/c.crt", "client-key": "/abs/c.key", "tokenFile": "token"}
    access = load(tmp_path, cluster={"certificate-authority": "ca.crt"}, user=user)

    assert access.cluster.ca.path == tmp_path / "ca.crt"
    assert access.user.certificate.path == tmp_path / "pki/c.crt"
    assert access.user.key.path == Path("/abs/c.key")
    assert access.user.token_file == tmp_path / "token"


def test_inline_data_wins_over_a_path(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    access = load(tmp_path, cluster={"certificate-authority": "ca.crt", "certificate-authority-data": data})

    assert access.cluster.ca.path is None
    assert access.cluster.ca.content.reveal() == b"PEM"


def test_unknown_keys_are_left_alone(tmp_path: Path) -> None:
    """Newer tools write newer keys."""
    load(tmp_path, cluster={"disable-compression": True, "extensions": []}, preferences={}, extensions=[])


def test_context_without_user_is_anonymous(tmp_path: Path) -> None:
    access = load(tmp_path, contexts=[{"name": "here", "context": {"cluster": "c"}}])

    assert not access.user.token


def test_exec_plugin_is_read(tmp_path: Path) -> None:
    plugin = {
        "apiVersion": BETA,
        "command": "./bin/login",
        "args": ["--cluster", SECRET],
        "env": [{"name": "KEY", "value": SECRET}],
        "provideClusterInfo": True,
        "installHint": "install login",
    }
    extensions = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}]
    command = load(tmp_path, user={"exec": plugin}, cluster={"extensions": extensions}).user.plugin

    assert command.command == str(tmp_path / "bin/login")
    assert (command.arguments, command.environment) == (("--cluster", SECRET), {"KEY": SECRET})
    assert command.is_given_cluster
    assert command.cluster_config == {"audience": "x"}
    assert SECRET not in repr(command)


def test_bare_command_is_looked_up_in_path(tmp_path: Path) -> None:
    plugin = {"apiVersion": V1, "command": "login", "interactiveMode": "Never"}

    assert load(tmp_path, user={"exec": plugin}).user.plugin.command == "login"


def test_repr_of_everything_shows_no_secret(tmp_path: Path) -> None:
    key = base64.b64encode(SECRET.encode()).decode()
    user = {"token": SECRET, "client-certificate-data": key, "client-key-data": key}
    shown = repr(load(tmp_path, user=user))

    assert SECRET not in shown
    assert key not in shown
    assert "***" in shown


FAULTS = [
    ({"current-context": ""}, "current-context: missing; name one of the contexts: here"),
    ({"current-context": "hree"}, "current-context: 'hree' is not in contexts; did you mean \"here\"?"),
    (
        {"contexts": [{"name": "here", "context": {"cluster": "k"}}]},
        "contexts[0].context.cluster: 'k' is not in clusters",
    ),
    ({"contexts": [{"name": "here", "context": {"cluster": "c", "user": "w"}}]}, "context.user: 'w' is not in users"),
    ({"contexts": [{"name": "here", "context": None}]}, "current-context: its context is empty"),
    ({"contexts": "here"}, "contexts: must be a list of maps"),
    ({"kind": "Pod"}, "kind: 'Pod' is not supported; expected Config"),
    ({"cluster": {"server": ""}}, "clusters[0].cluster.server: missing; expected https://HOST:PORT"),
    ({"cluster": {"server": 5}}, "clusters[0].cluster.server: must be a text"),
    ({"cluster": {"server": "10.0.0.1:6443"}}, "cluster.server: '10.0.0.1:6443' is not a server address"),
    ({"cluster": {"proxy-url": "http://p"}}, "clusters[0].cluster.proxy-url: proxies are not supported"),
    ({"cluster": {"insecure-skip-tls-verify": "yes"}}, "insecure-skip-tls-verify: must be true or false"),
    (
        {"cluster": {"insecure-skip-tls-verify": True, "certificate-authority": "x"}},
        "insecure-skip-tls-verify: cannot be combined with a certificate authority",
    ),
    ({"cluster": {"certificate-authority-data": "%%%"}}, "certificate-authority-data: not base64"),
    ({"user": {"client-key": "k"}}, "users[0].user.client-certificate: missing; client-key has no effect"),
    ({"user": {"client-certificate": "c"}}, "users[0].user.client-key: missing; client-certificate has no effect"),
    ({"user": {"client-key-data": SECRET}}, "client-key-data: not base64"),
    ({"user": {"token": 12345}}, "users[0].user.token: must be a text; put it in quotes"),
    ({"user": {"token": f"{SECRET}\n"}}, "users[0].user.token: has characters that are invalid in a token"),
    ({"user": {"username": "u", "password": SECRET}}, "users[0].user.username: passwords are not supported"),
    ({"user": {"auth-provider": {"name": "gcp"}}}, "auth-provider is not supported; use exec"),
    ({"user": {"as": "root"}}, "users[0].user.as: impersonation is not supported"),
    ({"user": {"exec": {"command": "x"}}}, "exec.apiVersion: '' is not supported; expected client.authentication"),
    ({"user": {"exec": {"apiVersion": V1, "interactiveMode": "Never"}}}, "users[0].user.exec.command: missing"),
    ({"user": {"exec": {"apiVersion": V1, "command": "x"}}}, "exec.interactiveMode: '' is not valid"),
    (
        {"user": {"exec": {"apiVersion": BETA, "command": "x", "interactiveMode": "Always"}}},
        "exec.interactiveMode: no terminal is there for it",
    ),
    ({"user": {"exec": {"apiVersion": BETA, "command": "x", "args": [1]}}}, "exec.args: must be a list of texts"),
    ({"user": {"exec": "login"}}, "users[0].user.exec: must be a map"),
]


@pytest.mark.parametrize(("parts", "text"), FAULTS)
def test_fault_is_named_with_file_line_and_field(tmp_path: Path, parts: dict, text: str) -> None:
    with pytest.raises(AccessInvalid) as raised:
        load(tmp_path, **parts)
    message = str(raised.value)

    assert text in message
    assert message.startswith(f"{tmp_path / 'kubeconfig'}:")
    assert message.split(":")[1].isdecimal()
    assert "\n" not in message
    assert SECRET not in message


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (f"users: [{{name: u, user: {{token: {SECRET}", "not YAML"),
        ("", "must be one document"),
        ("- a\n- b\n", "must be one document"),
        (f"token: {SECRET}\ntoken: {SECRET}\n", "key 'token' occurs again"),
        (f"token: !!python/object:{SECRET} x\n", "not YAML"),
        ("\0", "not YAML"),
    ],
)
def test_file_that_is_no_kubeconfig_is_refused_without_quoting_it(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)

    with pytest.raises(AccessInvalid) as raised:
        load_kubeconfig(path)
    assert text in str(raised.value)
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


def test_missing_or_huge_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessInvalid, match=r"cannot be read: No such file or directory; expected a kubeconfig"):
        load_kubeconfig(tmp_path / "none")
    huge = tmp_path / "huge"
    huge.write_bytes(b" " * (2 << 20))
    with pytest.raises(AccessInvalid, match="expected a kubeconfig"):
        load_kubeconfig(huge)


@pytest.mark.parametrize(
    "url", ["https://h:6443", "https://[fd00::1]:6443", "http://127.0.0.1:8001", "https://h/k8s/c1"]
)
def test_good_server_addresses_pass(url: str) -> None:
    assert checked_server(f"{url}/", "x") == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:6443",
        "ftp://h",
        "https://",
        "https://h:0",
        "https://h:99999",
        "https://fd00::1:6443x",
        "https://u:p@h",
        "https://h?x=1",
    ],
)
def test_bad_server_addresses_are_refused(url: str) -> None:
    with pytest.raises(AccessInvalid, match=r"^kubernetes.servers: .*HOST:PORT") as raised:
        checked_server(url, "kubernetes.servers")
    assert "u:p" not in str(raised.value)


def test_configured_servers_replace_the_one_in_the_file(tmp_path: Path) -> None:
    """`kubernetes.servers`."""
    access = load(tmp_path)

    assert access.through(["https://a:1/", "https://b:2"]).cluster.servers == ("https://a:1", "https://b:2")
    assert access.through([]) == access


def service_account(directory: Path) -> Path:
    for name in ("token", "ca.crt", "namespace"):
        (directory / name).write_text(name)
    return directory


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("10.96.0.1", "https://10.96.0.1:443"),
        ("fd00::1", "https://[fd00::1]:443"),
        ("[fd00::1]", "https://[fd00::1]:443"),
        ("kubernetes.default", "https://kubernetes.default:443"),
    ],
)
def test_pod_finds_its_cluster(tmp_path: Path, host: str, url: str) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    access = in_cluster(environment, service_account(tmp_path))

    assert access.cluster.servers == (url,)
    assert access.user.token_file == tmp_path / "token"
    assert access.cluster.ca.path == tmp_path / "ca.crt"


def test_process_outside_a_cluster_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(AccessInvalid, match=r"this process runs in no cluster; name a file in kubernetes\.kubeconfig"):
        in_cluster({}, tmp_path)


def test_pod_without_a_token_is_told_so(tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(AccessInvalid, match="token: missing; the pod needs a service account"):
        in_cluster(environment, tmp_path)


def test_configured_file_wins_over_the_service_account(tmp_path: Path) -> None:
    """`kubernetes.kubeconfig`: empty means in-cluster if a token is mounted, else none."""
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    mounted = service_account(_directory(tmp_path / "mounted"))
    configured = find_access(str(write(tmp_path)), [], environment, mounted)
    in_a_pod = find_access("", ["https://10.0.0.5:6443"], environment, mounted)

    assert configured.cluster.servers == ("https://10.0.0.1:6443",)
    assert in_a_pod.cluster.servers == ("https://10.0.0.5:6443",)
    assert find_access("", [], {}, tmp_path) is None


def _directory(path: Path) -> Path:
    path.mkdir()
    return path
