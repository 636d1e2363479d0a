# SPDX-License-Identifier: Apache-2.0
"""The fields of Deployments, DaemonSets and Jobs as manifests write them.

Fields that one node cannot carry out stand here as well, so that reading.py can say why. Never: judges a value.
"""

from msgspec import field

from agent.model.pods.container_fields import Fields
from agent.model.pods.fields import Metadata, PodFields, Texts

Count = int | str
"""A number of pods, or a share such as 25%."""


class Requirement(Fields, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class Selector(Fields, frozen=True):
    match_labels: Texts = field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()


class Template(Fields, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodFields = PodFields()


class RollingUpdate(Fields, frozen=True):
    max_unavailable: Count | None = None
    max_surge: Count | None = None


class Strategy(Fields, frozen=True):
    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class DeploymentFields(Fields, frozen=True):
    replicas: int = 1
    selector: Selector | None = None
    template: Template = Template()
    strategy: Strategy = Strategy()
    min_ready_seconds: int = 0
    progress_deadline_seconds: int = 600
    revision_history_limit: int = 10
    paused: bool = False


class DaemonSetFields(Fields, frozen=True):
    selector: Selector | None = None
    template: Template = Template()
    update_strategy: Strategy = Strategy()
    min_ready_seconds: int = 0
    revision_history_limit: int = 10


class JobFields(Fields, frozen=True):
    template: Template = Template()
    completions: int | None = None
    parallelism: int | None = None
    backoff_limit: int = 6
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    suspend: bool = False
    completion_mode: str = "NonIndexed"
    pod_replacement_policy: str = "TerminatingOrFailed"
    selector: object = None
    manual_selector: bool = False
    managed_by: object = None
    pod_failure_policy: object = None
    success_policy: object = None
    backoff_limit_per_index: object = None
    max_failed_indexes: object = None
