# SPDX-License-Identifier: Apache-2.0
"""Rules of a Job beyond numbers: what the failure of a pod means, and when it is enough that has succeeded. Pure."""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from agent.model.pods.container_fields import Container, Env, Fields
from agent.model.pods.fields import PodFields
from agent.model.pods.pod import PodSpec

FAIL_JOB, FAIL_INDEX, IGNORE, COUNT = "FailJob", "FailIndex", "Ignore", "Count"
ACTIONS = (FAIL_JOB, FAIL_INDEX, IGNORE, COUNT)
OPERATORS = ("In", "NotIn")
MOST_RULES, MOST_CODES, MOST_INDEXES_TEXT, MOST_DIGITS = 20, 255, 1 << 16, 11
INDEXED, INDEX = "Indexed", "batch.kubernetes.io/job-completion-index"


class ExitCodes(Fields, frozen=True):
    container_name: str = ""
    operator: str = ""
    values: tuple[int, ...] = ()

    def match(self, ends: Sequence[tuple[str, int]]) -> int | None:
        """The first code of a container that the rule is about."""
        for container, code in ends:
            if code and self.container_name in ("", container) and (code in self.values) == (self.operator == "In"):
                return code
        return None


class PodCondition(Fields, frozen=True):
    type: str = ""
    status: str = "True"


class FailureRule(Fields, frozen=True):
    action: str = ""
    on_exit_codes: ExitCodes | None = None
    on_pod_conditions: tuple[PodCondition, ...] = ()


class FailurePolicy(Fields, frozen=True):
    rules: tuple[FailureRule, ...] = ()


class SuccessRule(Fields, frozen=True):
    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(Fields, frozen=True):
    rules: tuple[SuccessRule, ...] = ()


def action_for(
    rules: Sequence[FailureRule], ends: Sequence[tuple[str, int]], conditions: Collection[str]
) -> tuple[str, str]:
    """What the failure of a pod means, and why, by the first rule that is about it."""
    for place, rule in enumerate(rules):
        if rule.on_exit_codes is not None:
            code = rule.on_exit_codes.match(ends)
            if code is not None:
                return rule.action, f"a container ended with {code}, which rule {place} of podFailurePolicy is about"
        for condition in rule.on_pod_conditions:
            if condition.status == "True" and condition.type in conditions:
                return rule.action, f"the pod has the condition {condition.type}, which rule {place} is about"
    return COUNT, ""


def is_success(rules: Sequence[SuccessRule], succeeded: Collection[int]) -> bool:
    for rule in rules:
        own = set(succeeded)
        wanted = set(indexes_in(rule.succeeded_indexes)) if rule.succeeded_indexes is not None else own
        reached = own & wanted
        if rule.succeeded_count is not None:
            if len(reached) >= rule.succeeded_count:
                return True
        elif rule.succeeded_indexes is not None and wanted <= own:
            return True
    return False


def indexes_in(text: str) -> Iterator[int]:
    """Of a text such as `0-3,7`. Raises ValueError."""
    for piece in filter(None, text.split(",")):
        first, _, last = piece.partition("-")
        yield from range(int(first), int(last or first) + 1)


def indexes_text(indexes: Collection[int]) -> str:
    """As short as it can be said: `0-3,7`; two that follow each other are named both."""
    pieces: list[list[int]] = []
    for index in sorted(indexes):
        if pieces and index == pieces[-1][-1] + 1:
            pieces[-1][1:] = [index]
        else:
            pieces.append([index])
    return ",".join(f"{piece[0]}{',' if piece[-1] == piece[0] + 1 else '-'}{piece[-1]}" if len(piece) > 1
                    else str(piece[0]) for piece in pieces)  # fmt: skip


class IndexedPart(msgspec.Struct, frozen=True, kw_only=True):
    """Of a record: indexes that are done, those that never will be, and how often pods of others have failed."""

    succeeded: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    failures: dict[int, int] = {}

    @property
    def over(self) -> frozenset[int]:
        return frozenset((*self.succeeded, *self.failed))

    def with_success(self, index: int) -> "IndexedPart":
        if index in self.over:
            return self
        return replace(self, succeeded=tuple(sorted((*self.succeeded, index))))

    def with_failure(self, index: int, most: int | None, *, is_final: bool) -> "IndexedPart":
        """`most`: failures that one index may have."""
        count = self.failures.get(index, 0) + 1
        made = replace(self, failures={**self.failures, index: count})
        if index in self.over or not (is_final or (most is not None and count > most)):
            return made
        return replace(made, failed=tuple(sorted((*self.failed, index))))


def free_indexes(part: IndexedPart, completions: int, taken: Collection[int], most: int) -> tuple[int, ...]:
    """The lowest that have no pod and need one."""
    held = part.over | set(taken)
    return tuple(islice((index for index in range(completions) if index not in held), most))


def indexed_spec(spec: PodFields, job: str, index: int) -> PodFields:
    """Each container knows its index, and the host's name tells it."""
    variable = Env(name="JOB_COMPLETION_INDEX", value=str(index))

    def told(container: Container) -> Container:
        others = tuple(one for one in container.env if one.name != variable.name)
        return replace(container, env=(*others, variable))

    return replace(
        spec,
        hostname=f"{job}-{index}",
        containers=tuple(map(told, spec.containers)),
        init_containers=tuple(map(told, spec.init_containers)),
    )


def index_of(pod: PodSpec) -> int:
    """Of a Job's; -1 for one that has none."""
    text = dict(pod.labels).get(INDEX, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < MOST_DIGITS else -1
