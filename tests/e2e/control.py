# SPDX-License-Identifier: Apache-2.0
"""The control plane of a small cluster: etcd, an API server, controllers, a scheduler, in a network namespace of their
own. Everybody is an administrator here by one token: what is compared is the nodes."""

import json
import secrets
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.drivers.kube.certificates import make_certificates
from tests.e2e.programs import Programs
from tests.host.process import ROOT
from tests.lab.child import Child
from tests.lab.namespace import Namespace

ADDRESS = {"IPv4": "192.168.9.100", "IPv6": "fd00:9::100"}
SERVICES = "10.96.0.0/16,fd00:96::/112"
PORT = 6443
URL = f"https://{ADDRESS['IPv4']}:{PORT}"
ALONE: dict[str, object] = {"leader-elect": "false"}
READY_WITHIN_S, CALL_S = 180.0, 120.0


class Control:
    """Runs from `start` to the end of the `with`."""

    def __init__(self, programs: Programs, folder: Path, namespace: Namespace, gates: str = "") -> None:
        self.programs, self.folder, self.namespace = programs, folder, namespace
        self.kubeconfig = folder / "admin.kubeconfig"
        self._gates = gates
        self._kept: list[Child] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.start_server()
        self.start_controllers()
        self.start_scheduler(kubeconfig=self.kubeconfig, **ALONE)
        self._start("names", sys.executable, "-m", "tests.e2e.names", str(self.kubeconfig), ADDRESS["IPv4"])
        self._start("balancer", sys.executable, "-m", "tests.e2e.balancer", str(self.kubeconfig))
        return self

    def start_server(self) -> Child:
        """What a test needs that makes all objects itself."""
        self.folder.mkdir(parents=True)
        self._write_credentials()
        self._begin("etcd", self.programs.etcd, **self._of_etcd())
        server = self._begin("apiserver", self.programs.server, **self._of_server())
        server.wait_ready(
            lambda: "" if self.kubectl("get", "--raw=/readyz", check=False) else "no answer", READY_WITHIN_S
        )
        return server

    def start_controllers(self, **more: object) -> None:
        flags = {"kubeconfig": self.kubeconfig, **ALONE, **self._of_controllers(), **more}
        self._begin("controllers", self.programs.controllers, **flags)

    def start_scheduler(self, **flags: object) -> None:
        self._begin("scheduler", self.programs.scheduler, **flags)

    def start_proxy(self, **flags: object) -> Child:
        """For a node in the same network."""
        return self._begin("kube-proxy", self.programs.proxy, **flags)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kubectl(self, *arguments: str, given: str = "", check: bool = True, within_s: float = CALL_S) -> str:
        command = self.namespace.command(self.programs.kubectl, f"--kubeconfig={self.kubeconfig}", *arguments)
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=within_s)
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def wait(self, what: str, *arguments: str, within_s: float = READY_WITHIN_S) -> None:
        """`kubectl wait`, also for what is not there yet."""
        self.until(what, "condition met", "wait", "--timeout=5s", *arguments, within_s=within_s)

    def until(self, what: str, words: str, *arguments: str, given: str = "", within_s: float = READY_WITHIN_S) -> None:
        """Until `kubectl` prints these words."""
        deadline_s = time.monotonic() + within_s
        while words not in self.kubectl(*arguments, given=given, check=False):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"not within {within_s:.0f} s: {what}; logs are in {self.folder}, with --keep")
            time.sleep(1)

    def _write_credentials(self) -> None:
        make_certificates(self.folder, also=f"IP:{ADDRESS['IPv4']},IP:10.96.0.1,DNS:kubernetes,DNS:kubernetes.default")
        key = ("openssl", "genrsa", "-out", str(self.folder / "accounts.key"), "2048")
        subprocess.run(key, check=True, capture_output=True)
        token = secrets.token_hex(16)
        (self.folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        (self.folder / "tokens.csv").chmod(0o600)
        self.kubeconfig.write_text(json.dumps(kubeconfig(token, self.folder / "ca.crt")))
        self.kubeconfig.chmod(0o600)

    def _begin(self, name: str, program: str, **flags: object) -> Child:
        return self._start(name, program, *(f"--{key}={value}" for key, value in flags.items()))

    def _start(self, name: str, *argv: str) -> Child:
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.folder)}
        log = self.folder / f"{name}.log"
        child = Child(name, self.namespace.command(*argv), log=log, environment=environment, directory=ROOT)
        child.start()
        self._stack.callback(child.stop)
        self._kept.append(child)
        return child

    def check(self) -> None:
        """What was found while one of these programs was gone is worth nothing."""
        if ended := [child.name for child in self._kept if not child.is_running]:
            raise RuntimeError(
                f"ended before the suite did: {', '.join(ended)}; logs are in {self.folder}, with --keep"
            )

    def _of_etcd(self) -> dict[str, object]:
        """Its files go with the cluster, so nothing has to reach a disk."""
        urls = "http://127.0.0.1:2379"
        return {
            "data-dir": self.folder / "etcd", "listen-client-urls": urls, "advertise-client-urls": urls,
            "listen-peer-urls": "http://127.0.0.1:2380", "unsafe-no-fsync": "true", "log-level": "error",
        }  # fmt: skip

    def _of_server(self) -> dict[str, object]:
        at, accounts = self.folder, self.folder / "accounts.key"
        flags = {
            "etcd-servers": "http://127.0.0.1:2379", "advertise-address": ADDRESS["IPv4"], "secure-port": PORT,
            "tls-cert-file": at / "server.crt", "tls-private-key-file": at / "server.key",
            "client-ca-file": at / "ca.crt", "token-auth-file": at / "tokens.csv",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": accounts, "service-account-signing-key-file": accounts,
            "service-cluster-ip-range": SERVICES, "authorization-mode": "Node,RBAC", "allow-privileged": "true",
            "kubelet-preferred-address-types": "InternalIP", "enable-aggregator-routing": "true",
            "requestheader-client-ca-file": at / "ca.crt", "requestheader-allowed-names": "kepd",
            "requestheader-username-headers": "X-Remote-User", "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": at / "client.crt", "proxy-client-key-file": at / "client.key",
            "cert-dir": at / "made", "audit-log-path": "",
        }  # fmt: skip
        return flags | ({"feature-gates": self._gates} if self._gates else {})

    def _of_controllers(self) -> dict[str, object]:
        at = self.folder
        return {
            "service-cluster-ip-range": SERVICES, "allocate-node-cidrs": "false", "root-ca-file": at / "ca.crt",
            "service-account-private-key-file": at / "accounts.key", "cert-dir": at / "made",
            "cluster-signing-cert-file": at / "ca.crt", "cluster-signing-key-file": at / "ca.key",
            "authentication-kubeconfig": self.kubeconfig, "authorization-kubeconfig": self.kubeconfig,
        }  # fmt: skip


def kubeconfig(token: str, authority: Path) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": URL, "certificate-authority": str(authority)}}],
        "users": [{"name": "a", "user": {"token": token}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    }  # fmt: skip
