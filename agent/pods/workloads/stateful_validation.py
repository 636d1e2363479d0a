# SPDX-License-Identifier: Apache-2.0
"""Whether the values of a StatefulSet can be carried out on one node."""

from agent.pods.manifest.validation.complaint import Complaints
from agent.pods.storage.objects import check_claim
from agent.pods.workloads.rollout import ON_DELETE, ROLLING
from agent.pods.workloads.validation import check_count, check_lasting, check_seconds, check_selector, share
from agent.pods.workloads.workload import ClaimTemplate, StatefulSetFields, StatefulStrategy

POLICIES = ("OrderedReady", "Parallel")
RETENTIONS = ("Retain", "Delete")
LARGEST_ORDINAL = 2**31 - 1


def check_stateful_set(spec: StatefulSetFields) -> Complaints:
    out = Complaints()
    check_count(out, "spec.replicas", spec.replicas)
    check_seconds(out, "spec.minReadySeconds", spec.min_ready_seconds)
    out.at_least("spec.revisionHistoryLimit", spec.revision_history_limit, 0)
    out.one_of("spec.podManagementPolicy", spec.pod_management_policy, POLICIES)
    if spec.service_name:
        out.label("spec.serviceName", spec.service_name)
    if not 0 <= spec.ordinals.start <= LARGEST_ORDINAL - spec.replicas:
        text = "must be greater than or equal to 0, and the last ordinal at most 2147483647"
        out.invalid("spec.ordinals.start", spec.ordinals.start, text)
    _strategy(out, spec.update_strategy)
    check_selector(out, spec.selector, spec.template)
    check_lasting(out, spec.template.spec)
    retention = spec.persistent_volume_claim_retention_policy
    path = "spec.persistentVolumeClaimRetentionPolicy"
    out.one_of(f"{path}.whenDeleted", retention.when_deleted, RETENTIONS)
    out.one_of(f"{path}.whenScaled", retention.when_scaled, RETENTIONS)
    for index, claim in enumerate(spec.volume_claim_templates):
        _claim(out, f"spec.volumeClaimTemplates[{index}]", claim)
    names = [one.metadata.name for one in spec.volume_claim_templates]
    for index, name in enumerate(names):
        if name in names[:index]:
            out.duplicate(f"spec.volumeClaimTemplates[{index}].metadata.name", name)
    return out


def _strategy(out: Complaints, given: StatefulStrategy) -> None:
    out.one_of("spec.updateStrategy.type", given.type, (ROLLING, ON_DELETE))
    rolling, path = given.rolling_update, "spec.updateStrategy.rollingUpdate"
    if rolling is None:
        return
    if given.type != ROLLING:
        out.forbidden(path, f"only type {ROLLING} has it")
        return
    out.at_least(f"{path}.partition", rolling.partition, 0)
    if rolling.max_unavailable is None:
        return
    most = share(rolling.max_unavailable, 100, is_up=True)
    if not most:
        text = "must be a number from 1 on, or a share such as 25%; with 0 no pod could ever be replaced"
        out.invalid(f"{path}.maxUnavailable", rolling.max_unavailable, text)
    elif isinstance(rolling.max_unavailable, str) and most > 100:
        out.invalid(f"{path}.maxUnavailable", rolling.max_unavailable, "must be at most 100%")


def _claim(out: Complaints, path: str, claim: ClaimTemplate) -> None:
    out.label(f"{path}.metadata.name", claim.metadata.name)
    if claim.kind not in ("", "PersistentVolumeClaim"):
        out.one_of(f"{path}.kind", claim.kind, ("PersistentVolumeClaim",))
    check_claim(out, f"{path}.spec", claim.spec)
