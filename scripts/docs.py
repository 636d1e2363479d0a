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
from agent.config.reference import as_list
from agent.host.elsewhere import ELSEWHERE
from agent.host.features import ENTRIES
from agent.model import exit_codes
from agent.wire.kepd.v1 import (
    cri_proxy_pb2,
    device_pb2,
    dns_pb2,
    image_pb2,
    node_pb2,
    object_pb2,
    pod_pb2,
    policy_pb2,
    service_proxy_pb2,
    topology_pb2,
)
from scripts.vocabulary import ANNOTATIONS, EVENTS, metrics

COMPATIBLE = ("coredns_", "kubelet_", "kubeproxy_")
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
    device_pb2.DESCRIPTOR.services_by_name["DeviceService"],
    cri_proxy_pb2.DESCRIPTOR.services_by_name["CriProxyService"],
    service_proxy_pb2.DESCRIPTOR.services_by_name["ServiceProxyService"],
    dns_pb2.DESCRIPTOR.services_by_name["DnsService"],
    policy_pb2.DESCRIPTOR.services_by_name["PolicyService"],
    topology_pb2.DESCRIPTOR.services_by_name["TopologyService"],
)


def reference() -> str:
    """The page."""
    keys = all_keys(Configuration)
    plain = ", ".join(f"`{reason}`" for reason, text in sorted(EVENTS.items()) if not text)
    parts = [
        "# Reference",
        "Made from the code by `make docs`; do not edit.",
        "## Configuration",
        (
            "kepd reads `/etc/kepd/config.yaml`, then drop-ins `/etc/kepd/config.d/*.yaml`. Each file has its own: "
            "`services.yaml` those in `services.d`, `cri.yaml` those in `cri.d`; `kepd config check FILE` names what "
            "it reads. A flag beats the environment, which beats drop-ins, which beat the file. Any key by flag: "
            "`--set images.maxParallelPulls=5`; by environment: "
            f"`{keys['images.maxParallelPulls'].environment_name}=5`."
        ),
        (
            "In parentheses stands the default, then what else there may be. Lists and maps without one are empty. "
            "A key with `*` needs a restart of kepd; the others follow a reload."
        ),
        as_list().rstrip(),
        "## API",
        (
            "Package `kepd.v1` on the unix socket `api.socket`, with `grpc.health.v1` and reflection. "
            "Read: root and `api.readGroup`; operate: root and `api.operateGroup`; admin: root. "
            "The user that kepd runs as counts as root."
        ),
        methods(),
        "## Reasons of API errors",
        "In `google.rpc.ErrorInfo.reason`, domain `kepd.dev`:",
        ", ".join(f"`{reason}`" for reason in sorted(one.value for one in FailureReason)) + ".",
        "## Metrics",
        (
            "At `api.httpAddress`, page `/metrics`, a plane's where the plane runs. Counters end in `_total`; the page "
            "names each type. [Observation](observation.md) has the figures of containers."
        ),
        metric_list(),
        "## Reasons of events",
        "Shown by `kepctl get events`. Where Kubernetes has a word, kepd uses it.",
        "\n".join(f"- `{reason}`: {text}" for reason, text in sorted(EVENTS.items()) if text),
        f"These say by their names what happened: {plain}.",
        "## Annotations, labels, taints",
        "After `kepd.dev/`. An invalid value disables only that annotation and is reported.",
        annotation_lists(),
        "## Exit codes",
        exit_list(),
    ]
    return "\n\n".join(parts) + "\n"


def methods() -> str:
    """All rpcs, by service and level."""
    lines = []
    for service in SERVICES:
        by_level: dict[str, list[str]] = {}
        for method in service.methods:
            by_level.setdefault(LEVEL_NAMES[level_of(method)], []).append(f"`{method.name}`")
        told = "; ".join(f"{level}: {', '.join(names)}" for level, names in by_level.items())
        lines.append(f"- `{service.name}`, {told}")
    return "\n".join(lines)


def exit_list() -> str:
    """What each exit code means."""
    named = {code: name.lower().replace("_", " ") for name, code in vars(exit_codes).items() if name.isupper()}
    return ", ".join(f"{code} {name}" for code, name in sorted({0: "ok", **named}.items())) + "."


def metric_list() -> str:
    """What is counted, named as a scraper sees it; of other programs' names the meaning is theirs."""
    lines, compatible = [], []
    for one in sorted(asyncio.run(metrics()), key=lambda family: str(family.name)):
        labels = ",".join(getattr(one, "_labelnames", ()))
        name = f"`{one.name}{'_total' * (one.type == 'counter')}{labels and f'{{{labels}}}'}`"
        if one.name.startswith(COMPATIBLE):
            compatible.append(name)
        else:
            lines.append(f"- {name}: {one.documentation}")
    told = "With `telemetry.metricsCompat`, meant as in the programs that have these names: "
    return "\n".join(lines) + f"\n\n{told}{', '.join(compatible)}."


def annotation_lists() -> str:
    """Annotations by what they are on."""
    by_place: dict[str, list[str]] = {}
    for name, value, place, text in ANNOTATIONS:
        by_place.setdefault(place, []).append(f"- `{name}` ({value}): {text}")
    return "\n\n".join(f"{place}:\n\n" + "\n".join(lines) for place, lines in by_place.items())


FEATURES_HEAD = """# Kubernetes enhancements by number

Made from the code by `make docs`; do not edit. What kepd does of each enhancement proposal (KEP) that has a part on the
node, and what that needs. `kepctl get features` answers for the node at hand: `works`, `needs` (what is missing), `off`
(the key that switches it on), `partly`, or `elsewhere`. "By itself" means pods from files, without a kubelet, and
Services in the place of kube-proxy; "with a kubelet" means in front of one of any version. An empty cell means that
kepd has no part there, or needs nothing.
"""
ELSEWHERE_HEAD = """## What is no node's work

kepd makes Deployments, StatefulSets, Jobs and the like of its own node from files ([workloads](workloads.md)). No
option makes scheduling over nodes, autoscaling, admission and authorisation in the API server, storage of
objects, ingress and gateways, CSI volumes and their attachment, or NetworkPolicy.
"""
GROUPS = {
    "images": ("Images", "planes/images.md"),
    "pods": ("Pods", "planes/pods.md"),
    "devices": ("Devices", "devices.md"),
    "services": ("Services", "services.md"),
    "": ("The node", "observation.md"),
}


def features() -> str:
    """The page of features, from the rows that decide."""
    parts = [FEATURES_HEAD]
    for plane, (title, page) in GROUPS.items():
        rows = [
            (one.keps or "-", one.what + (f" ({_link(one.page)})" if one.page else ""), one.how, one.beside, one.needs)
            for one in ENTRIES
            if one.plane.partition("|")[0] == plane
        ]
        head = ("KEP", "what", "by itself", "with a kubelet", "needs")
        parts.append(f"## {title}\n\nMore: {_link(page)}.\n\n{table(*head, rows=rows)}\n")
    by_whom: dict[str, list[str]] = {}
    for keps, what, whose in ELSEWHERE:
        by_whom.setdefault(whose, []).append(f"{what} ({keps})")
    parts += [ELSEWHERE_HEAD, "\n".join(f"- {whose}: {'; '.join(some)}" for whose, some in by_whom.items()) + "\n"]
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
    lines = (f"- {words}: {text}" for words, text in shown)
    told = "What kubectl, podman, docker, crictl and systemctl have and kepctl has not is answered so:\n\n"
    return written + WORDS_HEAD + told + "\n".join(lines) + "\n"


def table(*heads: str, rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))


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
