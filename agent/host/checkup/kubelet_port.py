# SPDX-License-Identifier: Apache-2.0
"""Whether a kubelet of this node tells its pods to whoever asks, without credentials. Blocking; it asks on loopback.

With such a port open, everybody who reaches the node runs commands in its pods (10250) or reads their environment.
"""

import http.client
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress

from agent.model.finding import Advice

HOST, WITHIN_S = "127.0.0.1", 1.0
PORT, READ_ONLY_PORT = 10250, 10255


def open_kubelet_advice(port: int = PORT, read_only_port: int = READ_ONLY_PORT) -> Iterator[Advice]:
    # Only who answers matters here, not whether the certificate is one to trust.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if _answers(http.client.HTTPSConnection(HOST, port, timeout=WITHIN_S, context=context)):
        yield Advice(
            subject=f"kubelet's port {port}", found="answers without credentials", wanted="401 Unauthorized",
            text="whoever reaches this node runs commands in its pods",
            mend="in the kubelet's configuration: authentication.anonymous.enabled: false, authorization.mode: Webhook",
        )  # fmt: skip
    if _answers(http.client.HTTPConnection(HOST, read_only_port, timeout=WITHIN_S)):
        yield Advice(
            subject=f"kubelet's port {read_only_port}", found="answers without credentials", wanted="closed",
            text="whoever reaches this node reads its pods with their environment",
            mend="in the kubelet's configuration: readOnlyPort: 0",
        )  # fmt: skip


def _answers(connection: http.client.HTTPConnection) -> bool:
    with closing(connection), suppress(OSError, http.client.HTTPException, ValueError):
        connection.request("GET", "/pods")
        return connection.getresponse().status == http.client.OK
    return False
