# SPDX-License-Identifier: Apache-2.0
"""An API server with the objects of a dump, in a thread of its own, and kubeconfigs for it."""

import asyncio
import copy
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.drivers.kube.api_server import ApiServer
from tests.drivers.kube.certificates import Certificates
from tests.drivers.kube.fake_objects import KINDS, FakeObjects

PLURALS = {kind.kind: kind for kind in KINDS.values()}


def stored(items: Sequence[dict[str, Any]]) -> FakeObjects:
    objects = FakeObjects()
    for item in items:
        kind = PLURALS[item["kind"]]
        one = copy.deepcopy({key: value for key, value in item.items() if key not in ("kind", "apiVersion")})
        one["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]
        if kind.has_namespace:
            one["metadata"].setdefault("namespace", "default")
        objects.put(kind.plural, one)
    return objects


@contextmanager
def served(certificates: Certificates, items: Sequence[dict[str, Any]]) -> Iterator[ApiServer]:
    """kepctl is another process, so the server needs a loop that runs meanwhile."""
    server = ApiServer(certificates, stored(items))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
        yield server
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def kubeconfig(folder: Path, server: ApiServer, token: str = "good-token", **cluster: Any) -> Path:
    """With a context `broken` beside the current one, whose user the server does not know."""
    ca = {"certificate-authority": str(server.certificates.ca)} if server.certificates else {}
    users = {"here": {"token": token}, "broken": {"token": "who-is-this-4711"}}
    content = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "contexts": [{"name": name, "context": {"cluster": "c", "user": name}} for name in users],
        "clusters": [{"name": "c", "cluster": {"server": server.url, **ca, **cluster}}],
        "users": [{"name": name, "user": user} for name, user in users.items()],
    }  # fmt: skip
    path = folder / "kubeconfig"
    path.write_text(json.dumps(content))
    return path
