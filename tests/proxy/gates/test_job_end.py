# SPDX-License-Identifier: Apache-2.0
"""Ended Jobs: whose sidecars are ended, and which exits are masked."""

import msgspec
import pytest

from agent.proxy.frames.cri_bytes import masked_answer, with_timeout
from agent.proxy.gates.job_end import grace_of, read_masks, sidecars_to_end, still_needed, written_masks
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.proxy.pods import CREATED, EXITED, container, sandbox

NOTES = {"sidecars": "a,b", "mains": "one,two", "job-end": "success"}


def names(pod) -> list[str]:
    return [one.name for one in sidecars_to_end(pod)]


def done(name: str, code: int = 0, attempt: int = 0):
    return container(name, EXITED, code=code, attempt=attempt)


def test_sidecars_end_in_reverse_when_all_mains_are_done() -> None:
    """JOB-1, JOB-3."""
    assert names(sandbox(NOTES, container("a"), container("b"), done("one"), done("two"))) == ["b", "a"]


@pytest.mark.parametrize("second", [(), (container("two", CREATED),), (container("two"),), (done("two", 1),)])
def test_nothing_ends_while_there_is_work(second) -> None:
    """JOB-2: not made yet, not started, running, or failed and about to be tried again."""
    assert names(sandbox(NOTES, container("a"), container("b"), done("one"), *second)) == []


def test_the_last_attempt_counts() -> None:
    """JOB-2."""
    pod = sandbox(NOTES, container("a"), done("one"), done("two", 1), done("two", 0, attempt=1))

    assert names(pod) == ["a"]


def test_any_code_will_do_where_the_pod_says_so() -> None:
    """JOB-1."""
    assert names(sandbox({**NOTES, "job-end": "any"}, container("a"), done("one", 1), done("two", 9))) == ["a"]


def test_without_the_annotation_nothing_is_ended() -> None:
    notes = {"sidecars": "a", "mains": "one"}

    assert names(sandbox(notes, container("a"), done("one"))) == []


def test_what_ended_by_itself_is_not_touched() -> None:
    """JOB-4: a sidecar that failed before shows its own code."""
    assert names(sandbox(NOTES, done("a", 1), container("b"), done("one"), done("two"))) == ["b"]


def test_the_time_to_end_is_the_pod_s() -> None:
    """JOB-3."""
    one = container("a", grace_s=7)
    assert grace_of(one) == 7
    one.annotations = {}

    assert grace_of(one) == 30


def test_masks_come_back_from_the_disk() -> None:
    """REC-4."""
    masks = {"c1": "s1", "c2": "s2"}

    assert read_masks(written_masks(masks)) == masks
    assert read_masks(None) == {}
    assert still_needed(masks, ["c2", "c3"]) == {"c2": "s2"}


@pytest.mark.parametrize("content", [b"garbage", b'{"containers": 7}', b"[]"])
def test_a_damaged_file_is_told(content: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_masks(content)


def status(container_id: str, state: int = pb.CONTAINER_EXITED) -> pb.ContainerStatus:
    return pb.ContainerStatus(
        id=container_id, state=state, exit_code=137, reason="Error", message="killed", finished_at=9
    )


NEWER = b"\xfa\x3f\x03new"


def test_a_masked_exit_looks_like_a_success_and_the_rest_stays() -> None:
    """JOB-4, PRX-21."""
    answer = pb.ContainerStatusResponse(status=status("c1"), info={"k": "v"}).SerializeToString() + NEWER
    found = pb.ContainerStatusResponse.FromString(masked_answer("ContainerStatus", answer, {"c1"}))

    assert (found.status.exit_code, found.status.reason, found.status.message) == (0, "Completed", "")
    assert (found.status.finished_at, dict(found.info)) == (9, {"k": "v"})
    assert found.SerializeToString().endswith(NEWER)


def test_others_and_those_that_still_run_pass_byte_for_byte() -> None:
    """JOB-4."""
    for one in (status("other"), status("c1", pb.CONTAINER_RUNNING)):
        answer = pb.ContainerStatusResponse(status=one).SerializeToString() + NEWER

        assert masked_answer("ContainerStatus", answer, {"c1"}) is answer


def test_the_other_two_answers_with_exit_codes_are_masked_too() -> None:
    """JOB-4."""
    pod = pb.PodSandboxStatusResponse(containers_statuses=[status("c1"), status("c2")]).SerializeToString()
    event = pb.ContainerEventResponse(containers_statuses=[status("c2"), status("c1")]).SerializeToString()
    of_pod = pb.PodSandboxStatusResponse.FromString(masked_answer("PodSandboxStatus", pod, {"c1"}))
    of_event = pb.ContainerEventResponse.FromString(masked_answer("GetContainerEvents", event, {"c1"}))

    assert [one.exit_code for one in of_pod.containers_statuses] == [0, 137]
    assert [one.exit_code for one in of_event.containers_statuses] == [137, 0]


@pytest.mark.parametrize(
    "message", [b"", b"\x0a\x01c", b"\x0a\xff", b"\x10", b"\x13\x00\x10\x05", b"\x0a\x01c\x10\x05\xff"]
)
def test_a_stop_that_cannot_be_changed_says_so(message: bytes) -> None:
    try:
        changed = with_timeout(message, 300)
    except ValueError:
        return

    assert len(changed) == len(message)
