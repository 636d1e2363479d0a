# SPDX-License-Identifier: Apache-2.0
"""Three nodes and a control plane in network namespaces that lead nowhere else, one node in each of three zones."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.control import Control
from tests.e2e.nodes import Node, Side, connect, patch_of
from tests.e2e.programs import Programs
from tests.lab.namespace import Namespace

NODES = 3
HELD = Path(__file__).with_name("held.yaml")
ASKING: dict[str, Any] = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asking"},
    "spec": {"containers": [{"name": name, "image": "none"} for name in "ab"]},
}  # fmt: skip


@contextmanager
def cluster(side: Side, programs: Programs, folder: Path) -> Iterator[tuple[Control, Sequence[Node]]]:
    """Until the end of the `with`; nodes are ready, and the images of the suite lie in a registry on each."""
    began_s = time.monotonic()
    with ExitStack() as stack:
        enter = stack.enter_context
        switch, inside = enter(Namespace()), enter(Namespace())
        control = Control(programs, folder / "control", inside)
        nodes = [enter(Node(number, side, programs, folder, control)) for number in range(1, NODES + 1)]
        connect(switch, inside, nodes)
        enter(control)
        if side.proxy == "kepd":
            # A server that has just begun cannot describe all its objects yet.
            control.kubectl("apply", "--validate=false", "-f", "-", given=HELD.read_text())
        for node in nodes:
            node.give_images()
            node.start()
        for node in nodes:
            control.wait(f"{node.name} is there", "--for=create", f"node/{node.name}")
            control.kubectl("patch", "node", node.name, "--type=merge", "-p", json.dumps(patch_of(node)))
            control.wait(f"{node.name} is ready", "--for=condition=Ready", f"node/{node.name}")
        if side.proxy == "kepd":
            # A policy takes a moment to be heeded.
            dry = ("create", "--dry-run=server", "--validate=false", "-o", "json", "-f", "-")
            control.until("pods ask for an order", "kepd.dev/sidecars", *dry, given=json.dumps(ASKING))
        print(f"{side.name}: three nodes are ready after {time.monotonic() - began_s:.0f} s", flush=True)
        yield control, nodes
    print(f"{side.name}: done after {time.monotonic() - began_s:.0f} s", flush=True)
