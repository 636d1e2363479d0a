# SPDX-License-Identifier: Apache-2.0
"""Who may use an image that is there: the decision and the records behind it."""

import pytest

from agent.images.access.grants import (
    MOST_PROOFS,
    AccessRules,
    Claim,
    Proofs,
    VerifyPolicy,
    after_pull,
    claim_of,
    is_check_needed,
    judge,
)
from agent.images.run.records import AccessRecords
from agent.model.images.credential import Credential, SecretId, SecretText
from tests.fakes.state_files import FakeStateFiles

RULES = AccessRules()
IMAGE, REPO, REF = "sha256:1", "r.io/x", "r.io/x:1"


def credential(name="s", password="p", uid="uid") -> Credential:
    return Credential(
        username="u", password=SecretText(password), source=f"secret:{name}", secret=SecretId("ns", name, uid)
    )


def claim(*credentials) -> Claim:
    return claim_of(credentials)


def pulled_with(used: Credential | None, at_s=0.0) -> Proofs:
    return after_pull(None, used, used.hash() if used else "", at_s)


@pytest.mark.parametrize(
    ("policy", "pulled_by_us", "needed"),
    [
        ("NeverVerify", True, False),
        ("NeverVerifyPreloadedImages", True, True),
        ("NeverVerifyPreloadedImages", False, False),
        ("NeverVerifyAllowlistedImages", False, True),
        ("AlwaysVerify", False, True),
    ],
)
def test_the_policy_says_which_images_are_checked(policy, pulled_by_us, needed) -> None:
    """IMG-V01."""
    rules = AccessRules(policy=VerifyPolicy(policy))

    assert is_check_needed(REF, rules, is_pulled_by_us=pulled_by_us) is needed


def test_an_allowlisted_image_is_not_checked() -> None:
    """IMG-V01."""
    rules = AccessRules(policy=VerifyPolicy.NOT_ALLOWLISTED, allowlist=("r.io/*",))

    assert not is_check_needed(REF, rules, is_pulled_by_us=True)


def test_an_anonymous_or_node_wide_pull_opens_an_image_for_all() -> None:
    """IMG-V04."""
    for used in (None, Credential(username="u", source="node"), Credential(username="u", source="provider:x")):
        assert judge(pulled_with(used), claim(), RULES, 0).may_use


def test_a_private_pull_opens_it_only_for_who_has_the_same() -> None:
    """IMG-V03."""
    proofs = pulled_with(credential())

    assert judge(proofs, claim(credential()), RULES, 0).may_use
    assert not judge(proofs, claim(), RULES, 0).may_use
    assert not judge(proofs, claim(credential("other", "q", "uid2")), RULES, 0).may_use
    assert not judge(None, claim(credential()), RULES, 0).may_use


def test_the_same_content_in_another_secret_and_another_content_in_the_same_secret_are_learnt() -> None:
    """IMG-V03."""
    proofs = pulled_with(credential())
    copied = judge(proofs, claim(credential("copy", "p", "uid2")), RULES, 0)
    rotated = judge(proofs, claim(credential("s", "new")), RULES, 0)

    assert copied.may_use
    assert len(copied.update.secrets) == 2
    assert rotated.may_use
    assert {proof.hash for proof in rotated.update.secrets} == {credential().hash(), credential("s", "new").hash()}


def test_no_more_than_a_hundred_secrets_are_kept() -> None:
    """IMG-V03."""
    proofs = Proofs()
    for number in range(MOST_PROOFS + 5):
        used = credential(f"s{number}", f"p{number}")
        proofs = after_pull(proofs, used, used.hash(), 0)

    assert len(proofs.secrets) == MOST_PROOFS
    assert not judge(proofs, claim(credential("s0", "rotated")), RULES, 0).may_use


def test_a_proof_may_expire() -> None:
    """IMG-V08."""
    rules = AccessRules(max_age_s=100)

    assert judge(pulled_with(credential(), 50), claim(credential()), rules, 150).may_use
    assert not judge(pulled_with(credential(), 50), claim(credential()), rules, 151).may_use
    assert not judge(pulled_with(None, 50), claim(), rules, 151).may_use


async def loaded(files) -> AccessRecords:
    records = AccessRecords(files)
    await records.load()
    return records


async def test_an_intent_is_on_the_disk_before_the_pull_and_goes_after_the_record() -> None:
    """IMG-V02."""
    files = FakeStateFiles()
    records = await loaded(files)
    await records.begin(REF)

    assert [name.partition("/")[0] for name in files.files if "/" in name] == ["pulling"]
    assert records.is_pulled_by_us("anything", REF)

    await records.succeed(REF, REPO, IMAGE, credential(), 5)

    assert [name.partition("/")[0] for name in files.files if "/" in name] == ["pulled"]
    assert files.writes[-1].startswith("pulled/")
    assert records.is_pulled_by_us(IMAGE, "r.io/else:1")


async def test_names_that_an_image_had_before_its_first_pull_stay_everybodys() -> None:
    """A private pull of the same content took a preloaded image from all pods."""
    files = FakeStateFiles()
    records = await loaded(files)
    await records.begin(REF)
    await records.succeed(REF, REPO, IMAGE, credential(), 5, {"r.io/preloaded:1", "r.io/own:1"})
    for _ in range(2):
        assert not records.is_pulled_by_us(IMAGE, "r.io/preloaded:1")
        assert records.is_pulled_by_us(IMAGE, REF)
        assert records.is_pulled_by_us(IMAGE, "r.io/else:1")
        records = await loaded(files)
    # A name that was taken away and pulled again is as private as that pull.
    await records.begin("r.io/own:1")
    await records.succeed("r.io/own:1", "r.io/own", IMAGE, credential(), 6, {"r.io/preloaded:1", REF})
    assert records.is_pulled_by_us(IMAGE, "r.io/own:1")
    assert not records.is_pulled_by_us(IMAGE, "r.io/preloaded:1")


async def test_what_is_pulled_at_the_same_time_was_not_there_before() -> None:
    records = await loaded(FakeStateFiles())
    for name in (REF, "r.io/else:1"):
        await records.begin(name)
    await records.succeed(REF, REPO, IMAGE, credential(), 5, {"r.io/else:1", REF})
    await records.succeed("r.io/else:1", "r.io/else", IMAGE, credential(), 5, {REF})

    assert records.is_pulled_by_us(IMAGE, "r.io/else:1")
    assert not records.is_pulled_by_us(IMAGE, REF)


async def test_a_crash_between_intent_and_record_leaves_an_image_that_has_to_be_verified() -> None:
    """IMG-V02."""
    files = FakeStateFiles()
    await (await loaded(files)).begin(REF)
    after_crash = await loaded(files)

    assert after_crash.is_pulled_by_us(IMAGE, REF)
    assert after_crash.proofs(IMAGE, REPO) is None

    await after_crash.begin(REF)
    await after_crash.fail(REF)

    assert after_crash.is_pulled_by_us(IMAGE, REF)
    assert (await loaded(files)).is_pulled_by_us(IMAGE, REF)

    await after_crash.begin(REF)
    await after_crash.succeed(REF, REPO, IMAGE, None, 1)

    assert not [name for name in files.files if name.startswith("pulling/")]


async def test_of_two_pulls_of_one_name_the_last_takes_the_intent_away() -> None:
    """IMG-V02."""
    files = FakeStateFiles()
    records = await loaded(files)
    await records.begin(REF)
    await records.begin(REF)
    await records.fail(REF)

    assert [name for name in files.files if name.startswith("pulling/")]

    await records.fail(REF)

    assert not [name for name in files.files if name.startswith("pulling/")]


async def test_records_survive_and_hold_only_keyed_hashes() -> None:
    """IMG-V04, V05: neither a password nor its plain hash is in a file."""
    files = FakeStateFiles()
    records = await loaded(files)
    used = credential(password="very-secret-password")
    await records.begin(REF)
    await records.succeed(REF, REPO, IMAGE, used, 5)
    again = await loaded(files)
    verdict = judge(again.proofs(IMAGE, REPO), again.claim(claim(used)), RULES, 5)
    content = b"".join(files.files.values())

    assert verdict.may_use
    assert not judge(again.proofs(IMAGE, REPO), again.claim(claim(credential("x", "y", "z"))), RULES, 5).may_use
    assert b"very-secret-password" not in content
    assert used.hash().encode() not in content


async def test_a_record_of_one_repository_says_nothing_about_another() -> None:
    """IMG-V07."""
    records = await loaded(FakeStateFiles())
    await records.begin(REF)
    await records.succeed(REF, REPO, IMAGE, None, 5)

    assert records.proofs(IMAGE, "other.io/x") is None
    assert records.is_pulled_by_us(IMAGE, "other.io/x:1")


async def test_records_that_cannot_be_read_are_kept_aside_and_their_images_are_verified() -> None:
    """IMG-V03."""
    files = FakeStateFiles()
    records = await loaded(files)
    await records.begin(REF)
    await records.succeed(REF, REPO, IMAGE, None, 5)
    name = next(name for name in files.files if name.startswith("pulled/"))
    for broken in (b"", b"{", b'{"format": "other", "kind": "x", "content": {}}', files.files[name][:50]):
        files.files[name] = broken
        again = await loaded(files)

        assert again.is_pulled_by_us(IMAGE, REF)
        assert again.proofs(IMAGE, REPO) is None
        assert files.aside[name] == broken


async def test_records_go_only_for_images_that_a_later_list_does_not_have() -> None:
    """IMG-V06."""
    files = FakeStateFiles()
    records = await loaded(files)
    await records.begin(REF)
    await records.succeed(REF, REPO, IMAGE, None, 100)

    assert await records.forget_absent(set(), 99) == []
    assert await records.forget_absent({IMAGE}, 200) == []
    assert await records.forget_absent(set(), 200) == [IMAGE]
    assert not [name for name in files.files if name.startswith("pulled/")]


async def test_without_a_place_for_the_intent_there_is_no_pull() -> None:
    """IMG-V02: otherwise a crash would make the image look preloaded."""
    files = FakeStateFiles()
    records = await loaded(files)
    files.failure = OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        await records.begin(REF)
    assert not records.is_pulled_by_us(IMAGE, REF)
