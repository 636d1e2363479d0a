# SPDX-License-Identifier: Apache-2.0
"""Credentials from a program: a child process that prints an ExecCredential.

Never: uses a shell, gives it our stdin or a terminal, or repeats anything it printed, on either stream: both may hold
secrets. An error says the exit code and how to look for oneself.
Source of behaviour: kubernetes/client-go `plugin/pkg/client/auth/exec`, client.authentication.k8s.io/v1 and v1beta1.
"""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from base64 import b64encode
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from agent.drivers.kube.access import Cluster, ExecCommand, Secret
from agent.drivers.kube.errors import CredentialsFailed, shown_message
from agent.drivers.kube.tls import ClientIdentity, identity_of, pem_content

MAX_OUTPUT_BYTES = 1 << 20


class IssuedStatus(msgspec.Struct, frozen=True, rename="camel"):
    expiration_timestamp: datetime | None = None
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    api_version: str
    status: IssuedStatus


class Issued(msgspec.Struct, frozen=True):
    """Credentials of one run. `expires_s` is wall time; None = until the server refuses them."""

    token: Secret
    identity: ClientIdentity | None
    expires_s: float | None


async def run_plugin(plugin: ExecCommand, cluster: Cluster, deadline_s: float) -> Issued:
    """Run it once. Raises CredentialsFailed."""
    try:
        child = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.arguments,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL,
            env={**os.environ, **plugin.environment, "KUBERNETES_EXEC_INFO": _exec_info(plugin, cluster)},
            start_new_session=True,
        )
    except OSError as error:
        raise _failed(plugin, f"cannot be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(deadline_s):
            output = await _output(plugin, child)
            code = await child.wait()
    except TimeoutError as error:
        raise _failed(plugin, f"did not finish within {deadline_s:.0f} s and was killed") from error
    finally:
        await _end(child)
    if code != 0:
        raise _failed(plugin, f"ended with exit code {code}; run it by hand to see why")
    return _issued(plugin, output)


def _exec_info(plugin: ExecCommand, cluster: Cluster) -> str:
    spec: dict[str, object] = {"interactive": False}
    if plugin.is_given_cluster:
        content = pem_content(cluster.ca) if cluster.ca else b""
        told = {
            "server": cluster.servers[0],
            "tls-server-name": cluster.server_name,
            "insecure-skip-tls-verify": not cluster.is_verified,
            "certificate-authority-data": b64encode(content).decode(),
            "config": plugin.cluster_config,
        }
        spec["cluster"] = {key: value for key, value in told.items() if value}
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return msgspec.json.encode(info).decode()


async def _output(plugin: ExecCommand, child: Process) -> bytes:
    if child.stdout is None:
        raise AssertionError("the child was started with a pipe")
    output = bytearray()
    while chunk := await child.stdout.read(1 << 16):
        output += chunk
        if len(output) > MAX_OUTPUT_BYTES:
            raise _failed(plugin, f"printed more than {MAX_OUTPUT_BYTES} bytes")
    return bytes(output)


async def _end(child: Process) -> None:
    """Leave no process behind; it leads a group of its own, so its children go with it."""
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()


def _issued(plugin: ExecCommand, output: bytes) -> Issued:
    try:
        answer = msgspec.json.decode(output, type=ExecCredential)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _failed(plugin, "did not print an ExecCredential with a status") from None
    if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version:
        raise _failed(plugin, f"answered in another version; expected ExecCredential of {plugin.api_version}")
    status = answer.status
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise _failed(plugin, "gave only one of clientCertificateData and clientKeyData")
    if not status.token and not status.client_key_data:
        raise _failed(plugin, "gave neither a token nor a client certificate")
    if any(not "!" <= sign <= "~" for sign in status.token):
        raise _failed(plugin, "gave a token with invalid characters, such as a blank or line end")
    identity = (
        identity_of(status.client_certificate_data.encode(), status.client_key_data.encode(), plugin.where)
        if status.client_key_data
        else None
    )
    return Issued(Secret(status.token.encode()), identity, _expiry_s(status.expiration_timestamp))


def _expiry_s(moment: datetime | None) -> float | None:
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _failed(plugin: ExecCommand, text: str) -> CredentialsFailed:
    hint = f"; {shown_message(plugin.install_hint)}" if plugin.install_hint else ""
    return CredentialsFailed(f"{plugin.where}: {shown_message(plugin.command)} {text}{hint}")
