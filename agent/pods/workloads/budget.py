# SPDX-License-Identifier: Apache-2.0
"""A document becomes a PodDisruptionBudget, or a list of what is wrong with it."""

import msgspec

from agent.config.shape import Shape, place_of
from agent.config.strict_yaml import Tree, plain
from agent.model.finding import Finding
from agent.model.generation import generation_of
from agent.model.pods.container_fields import Fields
from agent.model.pods.fields import Metadata
from agent.pods.manifest.selecting import Selector, check_expressions
from agent.pods.manifest.validation.complaint import Complaints
from agent.pods.manifest.validation.object_names import check_metadata
from agent.pods.workloads.validation import share
from agent.pods.workloads.workload import Count, Key

KIND, VERSION = "PodDisruptionBudget", "policy/v1"
IF_HEALTHY, ALWAYS = "IfHealthyBudget", "AlwaysAllow"


class BudgetFields(Fields, frozen=True):
    min_available: Count | None = None
    max_unavailable: Count | None = None
    selector: Selector | None = None
    unhealthy_pod_eviction_policy: str = IF_HEALTHY


class _Document(Fields, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    spec: BudgetFields = BudgetFields()
    status: object = None


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """One of `min_available` and `max_unavailable` is given. Without a selector it guards none, with an empty one all
    pods of its namespace."""

    namespace: str
    name: str
    min_available: Count | None = None
    max_unavailable: Count | None = None
    selector: Selector | None = None
    ends_unhealthy: bool = False
    generation: int = 0
    file: str = ""
    source: str = ""

    @property
    def key(self) -> Key:
        return KIND, self.namespace, self.name

    @property
    def text(self) -> str:
        return f"{KIND} {self.namespace}/{self.name}"


def read_budget(tree: Tree, path: str, findings: list[Finding]) -> Budget | None:
    """None if there are findings, which are added to the list."""
    before = len(findings)
    given = tree.entries.get("apiVersion")
    if given is None or given.scalar != VERSION:
        findings.append(Finding((given or tree).where, "apiVersion", f"must be {VERSION}"))
    findings += [
        Finding(tree.where, name, "must be a map") for name in ("metadata", "spec") if name not in tree.entries
    ]
    value = Shape(findings).read(tree, _Document, "")
    if len(findings) > before:
        return None
    read = msgspec.convert(value, _Document)
    findings += [Finding(place_of(tree, one.path), one.path, one.text) for one in _wrong(read).found]
    if len(findings) > before:
        return None
    spec = read.spec
    return Budget(
        namespace=read.metadata.namespace,
        name=read.metadata.name,
        min_available=spec.min_available,
        max_unavailable=spec.max_unavailable,
        selector=spec.selector,
        ends_unhealthy=spec.unhealthy_pod_eviction_policy == ALWAYS,
        generation=generation_of(plain(tree)),
        file=path,
        source=tree.where,
    )


def _wrong(read: _Document) -> Complaints:
    out = Complaints()
    check_metadata(read.metadata, out)
    spec = read.spec
    counts = (("minAvailable", spec.min_available), ("maxUnavailable", spec.max_unavailable))
    if None not in (spec.min_available, spec.max_unavailable):
        out.forbidden("spec.maxUnavailable", "only one of minAvailable and maxUnavailable can be given")
    if spec.min_available is None and spec.max_unavailable is None:
        out.required("spec.minAvailable", "it or maxUnavailable says how many pods may be missing")
    for name, value in counts:
        if value is None:
            continue
        most = share(value, 100, is_up=True)
        if most is None:
            out.invalid(f"spec.{name}", value, "must be a number from 0 on, or a share such as 50%")
        elif isinstance(value, str) and most > 100:
            out.invalid(f"spec.{name}", value, "must be at most 100%")
    out.one_of("spec.unhealthyPodEvictionPolicy", spec.unhealthy_pod_eviction_policy, (IF_HEALTHY, ALWAYS))
    if spec.selector is not None:
        check_expressions(out, spec.selector)
    return out
