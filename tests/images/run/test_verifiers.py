# SPDX-License-Identifier: Apache-2.0
"""Image verifiers as containerd's bindir plugin calls them, on kepd's own pulls. The programs are real."""

import json
from pathlib import Path

import pytest

from agent.config.sections.images import ImageVerify
from agent.images.run.pulling import recorded_pull
from agent.images.run.pulling.recorded_pull import Verifiers
from agent.images.view.texts import signature_advice
from agent.model.images.pull import ErrorClass, PullResult
from agent.model.images.state import PullStage
from agent.model.images.store import ImageRecord
from tests.images.run.test_providers import plugin
from tests.images.run.test_puller import A, B, Node

DIGEST = f"sha256:{'d' * 64}"
RECORD = ImageRecord(A, DIGEST, "application/vnd.oci.image.index.v1+json", 42, 0.0)
ACCEPTS = """
    import json, os, sys
    with open(os.path.join(os.path.dirname(os.path.dirname(__file__)), "calls"), "a") as calls:
        calls.write(json.dumps([sys.argv, json.load(sys.stdin)]) + "\\n")
    print("signed by the release key")
"""
REFUSES = """
    import sys
    print("no signature of\\033[31m the release key")
    sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def judge(folder: Path) -> Verifiers:
    return Verifiers(lambda: str(folder), {"PATH": "/usr/bin:/bin"})


async def test_a_verifier_is_called_by_containerd_s_contract(folder: Path) -> None:
    plugin(folder, ACCEPTS, "one")

    assert await judge(folder).refusal(RECORD) == ""
    command, descriptor = json.loads((folder.parent / "calls").read_text())
    media_type = "application/vnd.oci.descriptor.v1+json"
    assert command[1:] == ["-name", A, "-digest", DIGEST, "-stdin-media-type", media_type]
    assert descriptor == {"mediaType": RECORD.media_type, "digest": DIGEST, "size": 42}


async def test_all_have_to_agree_and_the_first_that_does_not_gives_the_reason(folder: Path) -> None:
    plugin(folder, REFUSES, "b")
    plugin(folder, ACCEPTS, "a")
    text = await judge(folder).refusal(RECORD)

    assert text.startswith(
        f"image verifier b blocked pull of {A} with digest {DIGEST} for reason: exit code 3: no sign"
    )
    assert text.isprintable()


async def test_a_directory_that_is_missing_or_empty_refuses_nothing(folder: Path) -> None:
    """containerd's contract."""
    assert await judge(folder).refusal(RECORD) == ""
    assert await judge(folder / "missing").refusal(RECORD) == ""


async def test_one_that_cannot_be_run_or_does_not_end_refuses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_pull, "LIMIT_S", 0.3)
    (folder / "a").write_text("no program")
    assert "a blocked pull" in await judge(folder).refusal(RECORD)
    (folder / "a").unlink()
    plugin(folder, "import time; time.sleep(60)", "b")
    assert "did not finish within 0.3s" in await judge(folder).refusal(RECORD)
    assert "cannot be listed" in await judge(folder / "b").refusal(RECORD)


async def test_only_as_many_as_containerd_calls(folder: Path) -> None:
    for number in range(10):
        plugin(folder, "pass", f"a{number}")
    plugin(folder, REFUSES, "b")

    assert await judge(folder).refusal(RECORD) == ""


def verified(folder: Path) -> Node:
    """A node whose runtime names what it pulled, as containerd does."""
    node = Node(verify=ImageVerify(signatures=str(folder)))

    async def pulling(image: str, _auth: object) -> None:
        node.containerd.records[image] = ImageRecord(image, DIGEST, RECORD.media_type, 42, 0.0)

    node.cri.while_pulling = pulling
    return node


async def test_what_is_refused_has_no_name_left_and_stands_among_the_pulls(folder: Path) -> None:
    plugin(folder, REFUSES, "cosign-like")
    async with verified(folder).up() as node:
        outcome = await node.ask(A)
        state = node.states()[A]

    assert (outcome.result, outcome.error_class) == (PullResult.FAILED, ErrorClass.VERIFIER)
    assert "cosign-like blocked pull" in outcome.message
    assert (state.stage, state.error_class) == (PullStage.FAILED, ErrorClass.VERIFIER)
    assert "no signature of" in state.error
    assert node.containerd.records == {}
    assert not node.plane.records.is_pulled_by_us("", A)


async def test_what_is_accepted_is_pulled_as_ever(folder: Path) -> None:
    plugin(folder, ACCEPTS, "one")
    async with verified(folder).up() as node:
        outcome = await node.ask(A)

    assert outcome.result is PullResult.PULLED
    assert list(node.containerd.records) == [A]


async def test_a_name_that_stood_before_with_the_same_image_stays(folder: Path) -> None:
    """Its image may be in use; what the pull changed goes."""
    plugin(folder, REFUSES, "one")
    async with verified(folder).up() as node:
        node.containerd.records[A] = RECORD
        node.containerd.records[B] = ImageRecord(B, "sha256:another", "", 1, 0.0)
        assert (await node.ask(A)).result is PullResult.FAILED
        assert (await node.ask(B)).result is PullResult.FAILED

    assert list(node.containerd.records) == [A]


async def test_a_runtime_that_shows_no_digest_has_nothing_that_could_be_verified(folder: Path) -> None:
    plugin(folder, ACCEPTS, "one")
    node = Node(verify=ImageVerify(signatures=str(folder)))
    async with node.up():
        outcome = await node.ask(A)

    assert outcome.error_class is ErrorClass.VERIFIER
    assert "no digest" in outcome.message


def test_beside_a_kubelet_people_are_told_who_verifies_its_pulls() -> None:
    assert signature_advice("") == []
    note = signature_advice("/opt/verifiers")[0]
    assert note.is_note
    assert 'bin_dir = "/opt/verifiers"' in note.wanted
