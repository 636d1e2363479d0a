#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write docs/reference.md, features.md and a section of kubectl.md from the code, and check the links of all pages.

`--check` writes nothing and fails if the page is not what the code says, or if a link leads nowhere.
"""

import asyncio
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from google.protobuf.descriptor import ServiceDescriptor

from agent.api.access import LEVEL_NAMES
from agent.api.errors import FailureReason
from agent.api.service import level_of
from agent.cli.objects import foreign
from agent.config.document import Configuration
from agent.config.keys import all_keys
from agent.config.reference import as_table
from agent.host.features import ELSEWHERE, ENTRIES
from agent.model import exit_codes
from agent.wire.kepd.v1 import (
    cri_proxy_pb2,
    device_pb2,
    dns_pb2,
    image_pb2,
    kind_pb2,
    node_pb2,
    object_pb2,
    pod_pb2,
    service_proxy_pb2,
    topology_pb2,
)
from scripts.vocabulary import ANNOTATIONS, EVENTS, metrics

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference.md"
FEATURES = ROOT / "docs/keps.md"
KUBECTL = ROOT / "docs/kubectl.md"
WORDS_HEAD = "## Words of other programs\n\n"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
SERVICES: tuple[ServiceDescriptor, ...] = (
    node_pb2.DESCRIPTOR.services_by_name["NodeService"],
    image_pb2.DESCRIPTOR.services_by_name["ImageService"],
    pod_pb2.DESCRIPTOR.services_by_name["PodService"],
    object_pb2.DESCRIPTOR.services_by_name["ObjectService"],
    kind_pb2.DESCRIPTOR.services_by_name["KindService"],
    device_pb2.DESCRIPTOR.services_by_name["DeviceService"],
    cri_proxy_pb2.DESCRIPTOR.services_by_name["CriProxyService"],
    service_proxy_pb2.DESCRIPTOR.services_by_name["ServiceProxyService"],
    dns_pb2.DESCRIPTOR.services_by_name["DnsService"],
    topology_pb2.DESCRIPTOR.services_by_name["TopologyService"],
)


def reference() -> str:
    """The page."""
    keys = all_keys(Configuration)
    parts = [
        "# Reference",
        "Made from the code by `make docs`; do not edit.",
        "## Configuration",
        (
            "File `/etc/kepd/config.yaml`, drop-ins `/etc/kepd/config.d/*.yaml`. Each file has its own: "
            "`services.yaml` those in `services.d`, `cri.yaml` those in `cri.d`; `kepd config check FILE` names what "
            "it reads. A flag beats the environment, which beats drop-ins, which beat the file. Any key by flag: "
            "`--set images.maxParallelPulls=5`; by environment: "
            f"`{keys['images.maxParallelPulls'].environment_name}=5`."
        ),
        as_table().rstrip(),
        "## API",
        (
            "Package `kepd.v1` on the unix socket `api.socket`, with `grpc.health.v1` and reflection. "
            "Read: root and `api.readGroup`; operate: root and `api.operateGroup`; admin: root. "
            "The user that kepd runs as counts as root."
        ),
        methods(),
        "## Reasons of API errors",
        "In `google.rpc.ErrorInfo.reason`, domain `kepd.dev`.",
        "\n".join(f"- `{reason.value}`" for reason in FailureReason),
        "## Metrics",
        (
            "At `api.httpAddress`, page `/metrics`. Counters end in `_total` there. `kubeproxy_*` and "
            "`kubelet_*` appear only with `telemetry.metricsCompat`, and a plane's metrics only where the plane runs."
        ),
        metric_table(),
        "## Reasons of events",
        "Shown by `kepctl get events`. Where Kubernetes has a word, kepd uses it.",
        table("reason", "meaning", rows=((f"`{reason}`", text) for reason, text in sorted(EVENTS.items()))),
        "## Annotations, labels, taints",
        "After `kepd.dev/`. An invalid value disables only that annotation and is reported.",
        table("name", "value", "on", "meaning", rows=((f"`{name}`", *rest) for name, *rest in ANNOTATIONS)),
        "## Exit codes",
        exit_table(),
    ]
    return "\n\n".join(parts) + "\n"


def methods() -> str:
    """Table of all rpcs."""
    rows = [(f"`{one.name}.{rpc.name}`", LEVEL_NAMES[level_of(rpc)]) for one in SERVICES for rpc in one.methods]
    return table("rpc", "level", rows=rows)


def exit_table() -> str:
    """Table of exit codes."""
    named = {name: code for name, code in vars(exit_codes).items() if name.isupper()}
    rows = [(str(code), name.lower().replace("_", " ")) for name, code in sorted(named.items(), key=lambda row: row[1])]
    return table("code", "meaning", rows=(("0", "ok"), *rows))


def metric_table() -> str:
    """Table of what is counted."""
    return table(
        "name", "type", "labels", "meaning",
        rows=(
            (f"`{one.name}`", one.type, ", ".join(getattr(one, "_labelnames", ())), one.documentation)
            for one in sorted(asyncio.run(metrics()), key=lambda family: str(family.name))
        ),
    )  # fmt: skip


FEATURES_HEAD = """# Kubernetes enhancements by number

Made from the code by `make docs`; do not edit. What kepd does of each enhancement proposal (KEP) that has a part on the
node, and what that needs. `kepctl get features` answers it for the node at hand: `works`, `needs` (what is missing),
`off` (the key that switches it on), `partly`, or `elsewhere`. "By itself" means pods from files, without a kubelet, and
Services in the place of kube-proxy; "with a kubelet" means in front of one of any version.
"""
ELSEWHERE_HEAD = """## What is no node's work

kepd makes Deployments, DaemonSets and Jobs of its own node from files ([workloads](workloads.md)). Not done, and no
option makes it: scheduling over nodes, StatefulSets, CronJobs, autoscaling, admission and authorisation in the API
server, storage of objects, ingress and gateways, CSI volumes and their attachment, NetworkPolicy.
"""
GROUPS = {
    "images": ("Images", "planes/images.md"),
    "pods": ("Pods", "planes/pods.md"),
    "devices": ("Devices", "devices.md"),
    "services": ("Services", "planes/services.md"),
    "": ("The node", "observation.md"),
}


def features() -> str:
    """The page of features, from the rows that decide."""
    parts = [FEATURES_HEAD]
    for plane, (title, page) in GROUPS.items():
        rows = [
            (one.keps or "-", one.what, one.how, one.beside or "-", one.needs or "-", _link(one.page or page))
            for one in ENTRIES
            if one.plane.partition("|")[0] == plane
        ]
        head = ("KEP", "what", "by itself", "with a kubelet", "needs", "more")
        parts.append(f"## {title}\n\n{table(*head, rows=rows)}\n")
    parts += [ELSEWHERE_HEAD, table("KEP", "what", "whose work", rows=ELSEWHERE) + "\n"]
    return "\n".join(parts)


def _link(page: str) -> str:
    return f"[{Path(page.partition('#')[0]).stem}]({page})"


def kubectl() -> str:
    """The page for those who know kubectl, with the words that kepctl answers as its last section."""
    written = KUBECTL.read_text("utf-8").partition(WORDS_HEAD)[0]
    rows: dict[str, list[str]] = {}
    for word, text in (*foreign.COMMANDS.items(), *foreign.KINDS.items(), *foreign.FLAGS.items()):
        rows.setdefault(text, []).append(f"`{word}`")
    shown = ((", ".join(words), re.sub("(kepctl [^;]*)", r"`\1`", text)) for text, words in rows.items())
    told = "What kubectl, podman, docker, crictl and systemctl have and kepctl has not is answered so:\n\n"
    return written + WORDS_HEAD + told + table("typed", "answered", rows=shown) + "\n"


def table(*heads: str, rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"|{'|'.join(row)}|" for row in (heads, ["---"] * len(heads), *rows))


def dead_links() -> list[str]:
    """Links of our pages to files that are not there."""
    dead = []
    pages = [path for path in ROOT.rglob("*.md") if ".venv" not in path.parts and "node_modules" not in path.parts]
    for page in pages:
        targets = [
            link for link in LINK.findall(page.read_text("utf-8")) if "://" not in link and "mailto:" not in link
        ]
        missing = [target for target in targets if not (page.parent / target).exists()]
        dead += [f"{page.relative_to(ROOT)}: {target} is not there" for target in missing]
    return dead


def main() -> int:
    if "--check" not in sys.argv:
        REFERENCE.write_text(reference(), "utf-8")
        FEATURES.write_text(features(), "utf-8")
        KUBECTL.write_text(kubectl(), "utf-8")
        return 0
    problems = dead_links()
    if not REFERENCE.exists() or REFERENCE.read_text("utf-8") != reference():
        problems.append("docs/reference.md is not what the code says; run `make docs`")
    if not FEATURES.exists() or FEATURES.read_text("utf-8") != features():
        problems.append("docs/keps.md is not what the code says; run `make docs`")
    if KUBECTL.read_text("utf-8") != kubectl():
        problems.append("docs/kubectl.md is not what the code says; run `make docs`")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
