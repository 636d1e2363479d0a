# SPDX-License-Identifier: Apache-2.0
"""A kubeconfig: the address of the door, its authority, and a token."""

from base64 import b64encode

from agent.objects.documents import dumped

ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104


def kubeconfig(address: str, node: str, level: str, token: str, authority: bytes) -> str:
    host, _, port = address.rpartition(":")
    where = f"localhost:{port}" if host.strip("[]") in ANYWHERE else address
    cluster = {"server": f"https://{where}", "certificate-authority-data": b64encode(authority).decode()}
    name, user = node or "kepd", f"kepd-{level}"
    return dumped({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": user, "context": {"cluster": name, "user": user}}],
        "current-context": user,
    })  # fmt: skip
