# SPDX-License-Identifier: Apache-2.0
"""Whether the values of a Deployment, DaemonSet or Job can be carried out on one node."""

import re

from agent.model.pods.fields import PodFields
from agent.pods.manifest.selecting import Selector, check_expressions, selects
from agent.pods.manifest.validation.complaint import Complaints
from agent.pods.workloads.job_rules import ACTIONS, FAIL_INDEX, INDEXED, MOST_CODES, MOST_INDEXES_TEXT, MOST_RULES
from agent.pods.workloads.job_rules import OPERATORS as CODE_OPERATORS
from agent.pods.workloads.rollout import ON_DELETE, RECREATE, ROLLING
from agent.pods.workloads.workload import (
    ControllerFields,
    Count,
    DaemonSetFields,
    DeploymentFields,
    JobFields,
    ReplicaSetFields,
    Strategy,
    Template,
)

MOST_REPLICAS = 250
"""Of one object at one time."""
MOST_COMPLETIONS = 100_000
LONGEST_S = 2**31 - 1
SHARE = re.compile(r"(\d{1,4})%\Z")
INDEXES, NUMBER = re.compile(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", re.ASCII), re.compile(r"\d+", re.ASCII)
REPLACEMENTS = ("TerminatingOrFailed", "Failed")
# What needs more than this node has, by the field of a Job.
JOB_REFUSALS = {
    "selector": "kepd knows a Job's pods by their owner and needs no selector",
    "managed_by": "nobody else manages Jobs on this node",
}


def check_deployment(spec: DeploymentFields) -> Complaints:
    out = Complaints()
    check_count(out, "spec.replicas", spec.replicas)
    check_seconds(out, "spec.minReadySeconds", spec.min_ready_seconds)
    check_seconds(out, "spec.progressDeadlineSeconds", spec.progress_deadline_seconds, least=1)
    if spec.progress_deadline_seconds <= spec.min_ready_seconds:
        text = f"must be greater than minReadySeconds ({spec.min_ready_seconds})"
        out.invalid("spec.progressDeadlineSeconds", spec.progress_deadline_seconds, text)
    out.at_least("spec.revisionHistoryLimit", spec.revision_history_limit, 0)
    _strategy(out, "spec.strategy", spec.strategy, (ROLLING, RECREATE))
    check_selector(out, spec.selector, spec.template)
    check_lasting(out, spec.template.spec)
    return out


def check_replicas(spec: ReplicaSetFields | ControllerFields, selector: Selector | None) -> Complaints:
    """A ReplicaSet or ReplicationController."""
    out = Complaints()
    check_count(out, "spec.replicas", spec.replicas)
    check_seconds(out, "spec.minReadySeconds", spec.min_ready_seconds)
    check_selector(out, selector, spec.template)
    check_lasting(out, spec.template.spec)
    return out


def check_daemon_set(spec: DaemonSetFields) -> Complaints:
    out = Complaints()
    check_seconds(out, "spec.minReadySeconds", spec.min_ready_seconds)
    out.at_least("spec.revisionHistoryLimit", spec.revision_history_limit, 0)
    _strategy(out, "spec.updateStrategy", spec.update_strategy, (ROLLING, ON_DELETE))
    check_selector(out, spec.selector, spec.template)
    check_lasting(out, spec.template.spec)
    return out


def check_job(spec: JobFields) -> Complaints:
    out = Complaints()
    if spec.completions is not None and not 0 <= spec.completions <= MOST_COMPLETIONS:
        out.invalid("spec.completions", spec.completions, f"must be between 0 and {MOST_COMPLETIONS}")
    if spec.parallelism is not None:
        check_count(out, "spec.parallelism", spec.parallelism)
    if spec.backoff_limit is not None:
        check_seconds(out, "spec.backoffLimit", spec.backoff_limit)
    if spec.active_deadline_seconds is not None:
        check_seconds(out, "spec.activeDeadlineSeconds", spec.active_deadline_seconds)
    if spec.ttl_seconds_after_finished is not None:
        check_seconds(out, "spec.ttlSecondsAfterFinished", spec.ttl_seconds_after_finished)
    out.one_of("spec.completionMode", spec.completion_mode, ("NonIndexed", INDEXED))
    check_indexes(out, spec)
    check_failures(out, spec)
    out.one_of("spec.podReplacementPolicy", spec.pod_replacement_policy, REPLACEMENTS)
    if spec.manual_selector:
        out.forbidden("spec.manualSelector", JOB_REFUSALS["selector"])
    for name, text in JOB_REFUSALS.items():
        if getattr(spec, name) is not None:
            out.forbidden(f"spec.{_camel(name)}", text)
    policy = spec.template.spec.restart_policy
    if policy not in ("OnFailure", "Never"):
        out.one_of("spec.template.spec.restartPolicy", policy, ("OnFailure", "Never"))
    return out


def check_indexes(out: Complaints, spec: JobFields) -> None:
    if spec.completion_mode == INDEXED:
        if spec.completions is None and spec.parallelism is not None:
            out.required("spec.completions", "must be set where pods have an index")
    else:
        for name in ("success_policy", "backoff_limit_per_index", "max_failed_indexes"):
            if getattr(spec, name) is not None:
                out.forbidden(f"spec.{_camel(name)}", f"needs completionMode {INDEXED}")
    for name in ("backoff_limit_per_index", "max_failed_indexes"):
        if (value := getattr(spec, name)) is not None:
            out.at_least(f"spec.{_camel(name)}", value, 0)
    for place, rule in enumerate(spec.success_policy.rules[:MOST_RULES] if spec.success_policy is not None else ()):
        path, text = f"spec.successPolicy.rules[{place}]", rule.succeeded_indexes
        if text is None and rule.succeeded_count is None:
            out.required(path, "must have succeededIndexes or succeededCount")
        if text is not None and not (len(text) <= MOST_INDEXES_TEXT and INDEXES.fullmatch(text)):
            out.invalid(f"{path}.succeededIndexes", text[:100], "must be numbers and ranges such as 0-3,7")
        elif text is not None and any(number >= MOST_COMPLETIONS for number in map(int, NUMBER.findall(text))):
            out.invalid(f"{path}.succeededIndexes", text[:100], f"must have no index beyond {MOST_COMPLETIONS}")


def check_failures(out: Complaints, spec: JobFields) -> None:
    policy = spec.pod_failure_policy
    if policy is None:
        return
    if spec.template.spec.restart_policy != "Never":
        given = spec.template.spec.restart_policy
        out.invalid("spec.template.spec.restartPolicy", given, "must be Never with podFailurePolicy")
    if len(policy.rules) > MOST_RULES:
        out.invalid("spec.podFailurePolicy.rules", len(policy.rules), f"must be at most {MOST_RULES}")
    for place, rule in enumerate(policy.rules[:MOST_RULES]):
        path, codes = f"spec.podFailurePolicy.rules[{place}]", rule.on_exit_codes
        out.one_of(f"{path}.action", rule.action, ACTIONS)
        if rule.action == FAIL_INDEX and spec.backoff_limit_per_index is None:
            out.invalid(f"{path}.action", rule.action, "needs backoffLimitPerIndex")
        if (codes is None) == (not rule.on_pod_conditions):
            out.required(path, "must have one of onExitCodes and onPodConditions")
        if codes is not None:
            out.one_of(f"{path}.onExitCodes.operator", codes.operator, CODE_OPERATORS)
            if not 0 < len(codes.values) <= MOST_CODES:
                out.invalid(f"{path}.onExitCodes.values", len(codes.values), f"must be 1 to {MOST_CODES} codes")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def check_lasting(out: Complaints, spec: PodFields) -> None:
    if spec.restart_policy != "Always":
        out.one_of("spec.template.spec.restartPolicy", spec.restart_policy, ("Always",))
    if spec.active_deadline_seconds is not None:
        out.forbidden("spec.template.spec.activeDeadlineSeconds", "such a pod has no end; a Job's has one")


def _strategy(out: Complaints, path: str, given: Strategy, known: tuple[str, ...]) -> None:
    out.one_of(f"{path}.type", given.type, known)
    rolling = given.rolling_update
    if rolling is None:
        return
    if given.type != ROLLING:
        out.forbidden(f"{path}.rollingUpdate", f"only type {ROLLING} has it")
        return
    for name, value in (("maxUnavailable", rolling.max_unavailable), ("maxSurge", rolling.max_surge)):
        if value is not None and share(value, 100, is_up=False) is None:
            out.invalid(f"{path}.rollingUpdate.{name}", value, "must be a number from 0 on, or a share such as 25%")
        elif isinstance(value, str) and (share(value, 100, is_up=False) or 0) > 100 and name == "maxUnavailable":
            out.invalid(f"{path}.rollingUpdate.{name}", value, "must be at most 100%")
    if _is_none(rolling.max_unavailable) and _is_none(rolling.max_surge):
        text = "may not be 0 where maxSurge is 0 as well: no pod could ever be replaced"
        out.invalid(f"{path}.rollingUpdate.maxUnavailable", rolling.max_unavailable, text)


def _is_none(value: Count | None) -> bool:
    return value is not None and share(value, 100, is_up=True) == 0


def share(value: Count, whole: int, *, is_up: bool) -> int | None:
    """A number of pods; None for what is neither a number nor a share."""
    if isinstance(value, int):
        return value if value >= 0 else None
    found = SHARE.match(value)
    if found is None:
        return None
    parts = int(found[1]) * whole
    return -(-parts // 100) if is_up else parts // 100


def check_count(out: Complaints, path: str, value: int) -> None:
    if not 0 <= value <= MOST_REPLICAS:
        out.invalid(path, value, f"must be between 0 and {MOST_REPLICAS}")


def check_seconds(out: Complaints, path: str, value: int, least: int = 0) -> None:
    if not least <= value <= LONGEST_S:
        out.invalid(path, value, f"must be between {least} and {LONGEST_S}")


def check_selector(out: Complaints, selector: Selector | None, template: Template) -> None:
    if selector is None or not (selector.match_labels or selector.match_expressions):
        out.required("spec.selector", "the labels of its template, as in matchLabels")
        return
    labels = template.metadata.labels
    check_expressions(out, selector)
    if not selects(selector, labels):
        out.invalid("spec.template.metadata.labels", dict(labels), "spec.selector does not select these labels")
