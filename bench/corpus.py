# SPDX-License-Identifier: Apache-2.0
"""`python -m bench corpus DIR`: what becomes of manifests that other people wrote.

Each file with an object for a node is checked. What is taken is applied to a node, one file after the other, with a
stand-in for every image; it is waited for, deleted, and then looked at what is left. A stand-in has a shell and stays;
a program that only the image has, and what a probe asks of it, are not there, and that is told apart from faults of
kepd. Files that want the node itself (host paths, host namespaces, privileges) are checked alone.
"""

import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from agent.cli.objects.manifest_files import CheckedFile, ManifestFile, check_file
from agent.kinds.registry import BY_WRITTEN
from agent.model.images.reference import parse_reference
from bench.daemon import free_port
from tests.host.process import Kepd
from tests.lab import Image, Lab

STAND_IN = Image(name="bench/stand-in")
FOR_A_NODE = frozenset(BY_WRITTEN) | {"Namespace", "ServiceAccount"}
WITH_PODS = ("Pod", "Deployment", "ReplicaSet", "ReplicationController", "DaemonSet", "StatefulSet", "Job")
WANTS_THE_NODE = re.compile(r"hostPath:|hostNetwork:|hostPID:|hostIPC:|privileged: *true|SYS_|NET_ADMIN|hostPort:")
QUOTED = re.compile("""["'][^"']*["']""")
SETTLED_S, GONE_S, REST_S = 20.0, 90.0, 0.2
# Kinds of which something may be left.
SHOWN = "pods,deploy,rs,rc,ds,sts,jobs,cj,cm,secrets,pvc"
NEEDS_ITS_PROGRAM = (
    "executable file not found",
    "no such file or directory",
    "exited",
    "Error",
    "BackOff",
    "Completed",
)


def objects_in(content: bytes) -> Iterator[dict[str, Any]]:
    """As far as any reader of YAML takes them."""
    try:
        for document in yaml.load_all(content, yaml.CBaseLoader):
            listed = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else None
            for made in listed if isinstance(listed, list) else [document]:
                if isinstance(made, dict) and isinstance(made.get("kind"), str) and "apiVersion" in made:
                    yield made
    except (yaml.YAMLError, UnicodeDecodeError):
        return


def images_in(made: Any) -> Iterator[str]:
    if isinstance(made, dict):
        if isinstance(made.get("image"), str) and "name" in made:
            yield made["image"]
        for inner in made.values():
            yield from images_in(inner)
    elif isinstance(made, list):
        for inner in made:
            yield from images_in(inner)


def refusal(check: CheckedFile) -> str:
    """The first reason, without what differs from file to file."""
    finding = next(iter((*check.findings, *check.foreign)))
    path = re.sub(r"\[[^]]*\]", "[]", finding.path)
    text = re.sub(QUOTED, "…", finding.text)
    return f"{path}: {text[:90]}"


class Node:
    def __init__(self, lab: Lab, kepd: Kepd) -> None:
        self._lab, self._kepd = lab, kepd
        self._images: set[str] = set()

    def try_file(self, path: Path, made: list[dict[str, Any]]) -> str:
        """What became of it, in a word or two."""
        images = {image for one in made for image in images_in(one)}
        if any("@" in image for image in images):
            return "taken, not tried: an image by its digest has no stand-in"
        for image in images - self._images:
            self._lab.preload(STAND_IN, str(parse_reference(image)))
        self._images |= images
        applied = self._kepd.ctl("apply", "-f", str(path))
        if "Forbidden" in applied.stderr:
            return f"refused by this node: {applied.stderr.strip().splitlines()[-1][-90:]}"
        if applied.returncode:
            return f"fault: not applied: {applied.stderr.strip()[-200:]}"
        outcome = self._settled(has_pods=any(one["kind"] in WITH_PODS for one in made))
        deleted = self._kepd.ctl("delete", "--ignore-not-found", "-f", str(path))
        # Those of a StatefulSet outlive it, and somebody has to ask for their end.
        self._kepd.ctl("delete", "pvc", "--all", "--all-namespaces")
        left = self._left()
        if left:
            return f"fault: {left} left; {deleted.stderr.strip()[-200:]}"
        return outcome

    def _settled(self, *, has_pods: bool) -> str:
        until_s, outcome = time.monotonic() + SETTLED_S, ""
        while time.monotonic() < until_s:
            outcome = outcome_of(self._kepd.objects("pods"))
            if outcome == "ready" or (outcome == "no pods" and not has_pods):
                return outcome
            time.sleep(REST_S)
        return outcome

    def _left(self) -> str:
        until_s, names = time.monotonic() + GONE_S, ""
        while time.monotonic() < until_s:
            listed = self._kepd.ctl("get", SHOWN, "-A", "-o", "name")
            files = [path.name for path in self._kepd.manifests.iterdir()]
            names = ", ".join([*listed.stdout.split(), *files]) or listed.stderr
            if not names:
                return ""
            time.sleep(REST_S)
        return names


def outcome_of(pods: list[Any]) -> str:
    if not pods:
        return "no pods"
    if all(_is_well(pod) for pod in pods):
        return "ready"
    reasons = [str(part) for pod in pods if not _is_well(pod) for part in _reasons(pod)]
    text = "; ".join(reasons)
    if any(word in text for word in NEEDS_ITS_PROGRAM) or not text:
        return "runs, and needs the image's program"
    return f"waits: {text[:160]}"


def _is_well(pod: Any) -> bool:
    ready = [one for one in pod["status"].get("conditions", ()) if one["type"] == "Ready"]
    return pod["status"]["phase"] == "Succeeded" or any(one["status"] == "True" for one in ready)


def _reasons(pod: Any) -> Iterator[str]:
    status = pod["status"]
    yield from filter(None, (status.get("reason"), status.get("message")))
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        for state in (container.get("state", {}), container.get("lastState", {})):
            for name in ("waiting", "terminated"):
                if (told := state.get(name)) and told.get("reason") not in ("ContainerCreating", "PodInitializing"):
                    yield f"{told.get('reason', '')} {told.get('message', '')}"


def run(folder: Path, most: int) -> Counter[str]:
    """Of at most so many files that a node is tried with; the others are checked alone."""
    outcomes, tried = Counter[str](), 0
    with Lab.start() as lab, tempfile.TemporaryDirectory(prefix="kb") as name:
        root = lab.place.cgroup_parent.strip("/")
        extra = (
            f"pods: {{logDirectory: {name}/logs, cgroupRoot: '{root}', logLinkDirectory: ''}}\n"
            "images: {fallbackToPresent: true}\n"
        )
        with Kepd(Path(name), free_port(), endpoint=lab.endpoint, extra=extra) as kepd:
            kepd.start("--planes", "pods,images").wait_ready()
            node = Node(lab, kepd)
            for path in sorted(folder.rglob("*.y*ml")):
                made = list(objects_in(path.read_bytes()))
                if not any(one["kind"] in FOR_A_NODE for one in made):
                    continue
                check = check_file(ManifestFile(str(path), path.read_bytes()))
                if check.findings or not check.objects:
                    outcome = f"refused: {refusal(check)}"
                elif WANTS_THE_NODE.search(path.read_text()) or tried >= most:
                    outcome = "taken, not tried"
                else:
                    tried += 1
                    outcome = node.try_file(path, made)
                outcomes[outcome if not outcome.startswith("fault") else f"{outcome} ({path})"] += 1
                print(f"{outcome:60.200} {path.relative_to(folder)}", flush=True)
    return outcomes


def main(words: list[str]) -> int:
    """`DIR [MOST]`: the table; 1 where something is kepd's fault."""
    outcomes = run(Path(words[0]), int(words[1]) if len(words) > 1 else 10_000)
    print(f"\n| {outcomes.total()} files | |\n|---|---|")
    for outcome, count in outcomes.most_common():
        print(f"| {outcome} | {count} |")
    print(json.dumps({"taken": sum(n for word, n in outcomes.items() if not word.startswith("refused"))}))
    return int(any(word.startswith("fault") for word in outcomes))
