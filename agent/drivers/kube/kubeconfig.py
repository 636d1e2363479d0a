# SPDX-License-Identifier: Apache-2.0
"""kubeconfig files, and whether one of them or the service account of a pod gives access to a cluster.

Whatever cannot work is refused with file, line, field and what would be right; unknown keys are left alone, since newer
tools write newer keys. Never: opens the files it names (they rotate) or shows the value of a field that holds a secret.
Source of behaviour: kubernetes/client-go `tools/clientcmd`: relative paths start at the file, inline data wins over a
path, a token file over a token.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.config.strict_yaml import Tree, UnreadableYaml, parse_documents, plain
from agent.drivers.kube.access import (
    SERVICE_ACCOUNT,
    Cluster,
    ExecCommand,
    KubeAccess,
    Pem,
    Secret,
    User,
    checked_server,
    in_cluster,
)
from agent.drivers.kube.errors import AccessInvalid
from agent.model.finding import printable, shown, suggestion

MAX_BYTES = 1 << 20
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")
CLUSTER_INFO_EXTENSION = "client.authentication.k8s.io/exec"
UNSUPPORTED = {
    "auth-provider": "auth-provider is not supported; use exec",
    "username": "passwords are not supported; use a token, a client certificate or exec",
    "password": "passwords are not supported; use a token, a client certificate or exec",
    "as": "impersonation is not supported; use the credentials of the user itself",
}


class Section:
    """A map of the file that complains with file, line and path; lives while the file is read."""

    def __init__(self, tree: Tree, path: str) -> None:
        self.tree = tree
        self.path = path

    def place(self, key: str = "") -> str:
        """File, line and path of a key, or of the map itself."""
        tree = self.tree.entries.get(key, self.tree)
        return f"{tree.where}: {self._path(key)}"

    def fault(self, key: str, text: str) -> AccessInvalid:
        return AccessInvalid(f"{self.place(key)}: {text}")

    def text(self, key: str) -> str:
        """A text; absent and null are the same as empty. Its value is never shown: it may be a secret."""
        tree = self._given(key)
        if tree is None:
            return ""
        if tree.kind != "scalar" or not isinstance(tree.scalar, str):
            raise self.fault(key, "must be a text; put it in quotes")
        return tree.scalar

    def flag(self, key: str) -> bool:
        tree = self._given(key)
        if tree is None:
            return False
        if not isinstance(tree.scalar, bool):
            raise self.fault(key, "must be true or false")
        return tree.scalar

    def section(self, key: str) -> "Section | None":
        tree = self._given(key)
        if tree is None:
            return None
        if tree.kind != "map":
            raise self.fault(key, "must be a map")
        return Section(tree, self._path(key))

    def sections(self, key: str) -> list["Section"]:
        tree = self._given(key)
        if tree is None:
            return []
        if tree.kind != "list" or any(item.kind != "map" for item in tree.items):
            raise self.fault(key, "must be a list of maps")
        return [Section(item, f"{self._path(key)}[{position}]") for position, item in enumerate(tree.items)]

    def texts(self, key: str) -> tuple[str, ...]:
        tree = self._given(key)
        if tree is None:
            return ()
        if tree.kind != "list" or any(not isinstance(item.scalar, str) for item in tree.items):
            raise self.fault(key, "must be a list of texts; put each in quotes")
        return tuple(str(item.scalar) for item in tree.items)

    def _given(self, key: str) -> Tree | None:
        tree = self.tree.entries.get(key)
        return None if tree is None or (tree.kind == "scalar" and tree.scalar is None) else tree

    def _path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path and key else self.path or key


def load_kubeconfig(path: Path, context_name: str = "") -> KubeAccess:
    """The current context of a file, or the one that is named. Raises AccessInvalid."""
    document = _document(path)
    context = _context(document, context_name)
    cluster = _named(document, "clusters", "cluster", context.text("cluster"), context)
    if cluster is None:
        raise context.fault("cluster", "missing; name an entry of clusters")
    user_name = context.text("user")
    user = _named(document, "users", "user", user_name, context) if user_name else None
    return KubeAccess(
        source=str(path),
        context=context_name,
        cluster=_cluster(cluster, path.parent),
        user=_user(user, cluster, path.parent) if user else User(where=str(path)),
    )


def _document(path: Path) -> Section:
    try:
        with path.open("rb") as source:
            content = source.read(MAX_BYTES + 1)
    except OSError as error:
        raise AccessInvalid(f"{path}: cannot be read: {error.strerror}; expected a kubeconfig") from error
    if len(content) > MAX_BYTES:
        raise AccessInvalid(f"{path}: more than {MAX_BYTES} bytes: expected a kubeconfig")
    try:
        trees, duplicates = parse_documents(content, str(path))
    except UnreadableYaml as error:
        # The parser's words may quote the line it stumbled over, and that line may hold a token.
        raise AccessInvalid(f"{error.finding.where}: not YAML; expected a kubeconfig of kind Config") from None
    if duplicates:
        raise AccessInvalid(str(duplicates[0]))
    if len(trees) != 1 or trees[0].kind != "map":
        raise AccessInvalid(f"{path}: must be one document of kind Config, with clusters, users and contexts")
    document = Section(trees[0], "")
    for key, right in (("kind", "Config"), ("apiVersion", "v1")):
        if document.text(key) not in ("", right):
            raise document.fault(key, f"{shown(document.text(key))} is not supported; expected {right}")
    return document


def _context(document: Section, wanted: str) -> Section:
    name = wanted or document.text("current-context")
    names = [entry.text("name") for entry in document.sections("contexts")]
    known = ", ".join(map(printable, names)) or "none is there"
    if not name:
        raise document.fault("current-context", f"missing; name one of the contexts: {known}")
    if wanted and wanted not in names:
        raise document.fault("contexts", f"{shown(wanted)} is not there{suggestion(wanted, names)}; there are: {known}")
    context = _named(document, "contexts", "context", name, document, "current-context")
    if context is None:
        raise document.fault("contexts" if wanted else "current-context", "its context is empty")
    return context


def _named(document: Section, collection: str, part: str, name: str, asking: Section, key: str = "") -> Section | None:
    entries = {entry.text("name"): entry for entry in document.sections(collection)}
    if name not in entries:
        hint = suggestion(name, entries)
        raise asking.fault(key or part, f"{shown(name)} is not in {collection}{hint}")
    return entries[name].section(part)


def _cluster(cluster: Section, folder: Path) -> Cluster:
    server = cluster.text("server")
    if not server:
        raise cluster.fault("server", "missing; expected https://HOST:PORT")
    if cluster.text("proxy-url"):
        raise cluster.fault("proxy-url", "proxies are not supported; the API server must be reachable directly")
    ca = _pem(cluster, "certificate-authority", folder)
    is_unverified = cluster.flag("insecure-skip-tls-verify")
    if is_unverified and ca:
        raise cluster.fault("insecure-skip-tls-verify", "cannot be combined with a certificate authority; drop one")
    return Cluster(
        servers=(checked_server(server, cluster.place("server")),),
        ca=ca,
        is_verified=not is_unverified,
        server_name=cluster.text("tls-server-name"),
    )


def _user(user: Section, cluster: Section, folder: Path) -> User:
    for unsupported, text in UNSUPPORTED.items():
        if unsupported in user.tree.entries:
            raise user.fault(unsupported, text)
    certificate = _pem(user, "client-certificate", folder)
    key = _pem(user, "client-key", folder)
    if (certificate is None) != (key is None):
        missing, present = ("client-key", "client-certificate") if certificate else ("client-certificate", "client-key")
        raise user.fault(missing, f"missing; {present} has no effect without it")
    token_file = user.text("tokenFile")
    token = user.text("token")
    if any(not "!" <= sign <= "~" for sign in token):
        raise user.fault("token", "has characters that are invalid in a token, such as a blank or line end")
    return User(
        where=user.place(),
        token=Secret(token.encode()),
        token_file=folder / token_file if token_file else None,
        certificate=certificate,
        key=key,
        plugin=_plugin(user, cluster, folder),
    )


def _pem(section: Section, name: str, folder: Path) -> Pem | None:
    data_key = f"{name}-data"
    data = section.text(data_key)
    if data:
        try:
            return Pem(section.place(data_key), None, Secret(base64.b64decode(data, validate=True)))
        except (binascii.Error, ValueError):
            raise section.fault(data_key, "not base64; expected the PEM file in base64, on one line") from None
    path = section.text(name)
    return Pem(f"{section.place(name)}: {folder / path}", folder / path) if path else None


def _plugin(user: Section, cluster: Section, folder: Path) -> ExecCommand | None:
    plugin = user.section("exec")
    if plugin is None:
        return None
    version = plugin.text("apiVersion")
    if version not in EXEC_VERSIONS:
        raise plugin.fault("apiVersion", f"{shown(version)} is not supported; expected {' or '.join(EXEC_VERSIONS)}")
    command = plugin.text("command")
    if not command:
        raise plugin.fault("command", "missing; expected a program that prints an ExecCredential")
    mode = plugin.text("interactiveMode")
    if mode == "Always":
        raise plugin.fault("interactiveMode", "no terminal is there for it; expected Never or IfAvailable")
    if mode not in INTERACTIVE_MODES and (mode or version == EXEC_VERSIONS[0]):
        raise plugin.fault("interactiveMode", f"{shown(mode)} is not valid; expected Never or IfAvailable")
    return ExecCommand(
        where=plugin.place(),
        # A command with a slash is relative to the file, one without is looked up in PATH.
        command=str(folder / command) if "/" in command else command,
        api_version=version,
        arguments=plugin.texts("args"),
        environment={entry.text("name"): entry.text("value") for entry in plugin.sections("env")},
        install_hint=plugin.text("installHint").strip(),
        is_given_cluster=plugin.flag("provideClusterInfo"),
        cluster_config=_cluster_config(cluster),
    )


def _cluster_config(cluster: Section) -> object:
    for extension in cluster.sections("extensions"):
        if extension.text("name") == CLUSTER_INFO_EXTENSION and "extension" in extension.tree.entries:
            return plain(extension.tree.entries["extension"])
    return None


def find_access(
    kubeconfig: str, servers: Sequence[str], environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT
) -> KubeAccess | None:
    """The access to use; None on a node without a cluster. Raises AccessInvalid for one that cannot work."""
    if kubeconfig:
        return load_kubeconfig(Path(kubeconfig)).through(servers)
    if (service_account / "token").exists():
        return in_cluster(environment, service_account).through(servers)
    return None
