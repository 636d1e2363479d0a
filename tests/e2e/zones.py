# SPDX-License-Identifier: Apache-2.0
"""What `examples/kind` promises, without kind: `scripts/kind test`, word for word, on three nodes of three zones where
kepd runs as the DaemonSet of `deploy/overlays/kind`.

The nodes share this machine's file system, which kind's do not: so each has its own directories of the host.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.deploy.kustomize import render
from tests.e2e.cluster import cluster
from tests.e2e.control import URL
from tests.e2e.nodes import PODS, Side
from tests.e2e.programs import Programs
from tests.host.process import ROOT

CONTEXT, IMAGE = "kind-kepd", "localhost/kepd:dev"
VARIABLE = "KEPD_NODE__NAME"
LONGEST_S = 1800.0
ROLLOUTS = (
    "-n kube-system rollout status daemonset kepd",
    "rollout status daemonset echo",
    "rollout status daemonset client",
)


def check(programs: Programs, folder: Path, image: Path) -> int:
    """The exit code of the test. `image`: an archive that scripts/image wrote with this tag."""
    with ExitStack() as stack:
        side = Side(proxy="none")
        control, nodes = stack.enter_context(cluster(side, programs, folder))
        for node in nodes:
            node.add_image(image)
            stack.enter_context(node.host_directories(folder / "hosts"))
        control.kubectl(
            "apply",
            "-f",
            "-",
            given=json.dumps({"kind": "List", "apiVersion": "v1", "items": wanted(folder / "hosts")}),
        )
        control.kubectl("apply", "-f", str(ROOT / "examples/kind/echo.yaml"))
        for words in ROLLOUTS:
            control.kubectl(*words.split(), "--timeout=5m", within_s=LONGEST_S)
        return _scripts_test(programs, control.namespace.command, control.kubeconfig, folder)


def wanted(hosts: Path) -> list[dict[str, Any]]:
    """The overlay's objects, with this cluster's addresses and each node's own directories."""
    objects = render(ROOT / "deploy/overlays/kind")
    data = objects["ConfigMap", "kepd"]["data"]
    data["KEPD_KUBERNETES__SERVERS"] = json.dumps([URL])
    data["KEPD_SERVICES__DETECT_LOCAL__CLUSTER_CIDRS"] = json.dumps(list(PODS.values()))
    pod = objects["DaemonSet", "kepd"]["spec"]["template"]["spec"]
    own = {one["name"] for one in pod["volumes"] if one["name"] != "modules"}
    for volume in pod["volumes"]:
        if volume["name"] in own:
            volume["hostPath"] = {"path": str(hosts), "type": "Directory"}
    for container in (*pod["initContainers"], *pod["containers"]):
        container["imagePullPolicy"] = "Never"
        for mount in container.get("volumeMounts", ()):
            if mount["name"] in own:
                mount["subPathExpr"] = f"$({VARIABLE})/{mount['name']}"
    return list(objects.values())


def _scripts_test(programs: Programs, inside: Any, kubeconfig: Path, folder: Path) -> int:
    """With a kubectl and a context by the names that kind gives them."""
    place = folder / "bin"
    place.mkdir()
    (place / "kubectl").symlink_to(programs.kubectl)
    document = json.loads(kubeconfig.read_text())
    document["contexts"][0]["name"] = document["current-context"] = CONTEXT
    named = folder / "kind.kubeconfig"
    named.touch(0o600)
    named.write_text(json.dumps(document))
    environment = {**os.environ, "KUBECONFIG": str(named), "PATH": f"{place}:{os.environ['PATH']}"}
    command: Sequence[str] = inside(str(ROOT / "scripts/kind"), "test")
    return subprocess.run(command, env=environment, check=False, timeout=LONGEST_S).returncode
