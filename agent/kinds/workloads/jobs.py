# SPDX-License-Identifier: Apache-2.0
"""Jobs."""

from datetime import UTC, datetime

from agent.kinds.kind import BY_PODS, POD_PATH, Kind, status_of
from agent.kinds.parts import items, part
from agent.kinds.table import Column, Object
from agent.kinds.workloads.workloads import WIDE, count_of, describe
from agent.kinds.written import AGE, NAMES, Made, shown_objects

KIND = Kind(
    "jobs",
    "job",
    (),
    "Job",
    group="batch",
    read_by=BY_PODS,
    is_carried_out=True,
    pod_path=POD_PATH,
    turn=6,
    is_in_all=True,
    subresources=(status_of("Job"),),
)


# What comes later says more than what came before it.
OUTCOMES = ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet")


def job_state(made: Made) -> str:
    """The word of its condition; Running where it has none yet. Of one that is not carried out nothing is known."""
    held = {str(each.get("type")) for each in items(made, "status", "conditions") if each.get("status") == "True"}
    begun = "Running" if part(made, "status") else "Unknown"
    return next((word for word in OUTCOMES if word in held), begun)


def _completions(made: Object) -> str:
    spec = part(made, "spec")
    succeeded = count_of(made, "succeeded")
    if spec.get("completions") is None and spec.get("parallelism") is not None:
        return f"{succeeded}/1 of {spec['parallelism']}"
    return f"{succeeded}/{spec.get('completions', 1)}"


def _duration(made: Object) -> str:
    status = part(made, "status")
    if not status.get("startTime"):
        return ""
    end = datetime.fromisoformat(status["completionTime"]) if status.get("completionTime") else datetime.now(UTC)
    seconds = int((end - datetime.fromisoformat(status["startTime"])).total_seconds())
    return f"{seconds // 60}m{seconds % 60}s" if seconds >= 60 else f"{seconds}s"


SHOWN = shown_objects((
    *NAMES,
    Column("STATUS", job_state),
    Column("COMPLETIONS", _completions),
    Column("FAILED", lambda made: str(count_of(made, "failed"))),
    Column("DURATION", _duration),
    AGE,
    *WIDE,
))  # fmt: skip
__all__ = ["KIND", "SHOWN", "describe", "job_state"]
