# SPDX-License-Identifier: Apache-2.0
"""A roll to another image: which container it is for, and what its pods then have."""

import pytest
from msgspec.structs import replace

from kepd_rehearsal.plan.changes import BadChange, Change
from kepd_rehearsal.plan.images import imaged, parse_image
from kepd_rehearsal.plan.rehearse import rehearse
from packages.rehearsal.tests.clusters import WEB, cluster

MAIN = {"name": "web", "image": "web:1", "imagePullPolicy": "Always"}
SIDE = {"name": "log", "image": "log:1"}
KEY = ("Deployment", "default", "web")


def crew_with(*containers: dict, images: tuple[str, ...] = ("log:1", "web:1")):
    crew = cluster(*WEB).crews[KEY]
    policies = tuple("Always" if one == "web:1" else "IfNotPresent" for one in images)
    return replace(crew, images=images, policies=policies, made={"spec": {"containers": list(containers)}})


def test_the_pods_of_a_roll_have_the_image_and_others_do_not() -> None:
    (told,), after = rehearse(cluster(*WEB), [Change("roll", "default/web", value="web:2")])

    assert told.change == "roll default/web to web:2"
    assert {one.images for one in after.members} == {("web:2",)}
    assert len(after.members) == 6
    assert imaged(after.crews[KEY], "") is after.crews[KEY]


def test_pods_that_come_later_have_the_image_of_the_roll() -> None:
    changes = [Change("roll", "default/web", value="web:2"), Change("scale", "default/web", 8, 8)]
    _, after = rehearse(cluster(*WEB), changes)

    assert {one.images for one in after.members} == {("web:2",)}
    assert len(after.members) == 8


@pytest.mark.parametrize(
    ("value", "images", "policies"),
    [
        ("web=web:2", ("log:1", "web:2"), ("IfNotPresent", "Always")),
        ("log=web:1", ("web:1",), ("Always",)),
        ("log=log", ("log", "web:1"), ("Always", "Always")),
    ],
)
def test_a_container_is_chosen_by_its_name(value: str, images: tuple[str, ...], policies: tuple[str, ...]) -> None:
    found = imaged(crew_with(MAIN, SIDE), value)

    assert found.images == images
    assert found.made["spec"]["containers"][value.startswith("log")]["image"] == value.partition("=")[2]


def test_an_image_that_another_container_has_too_stays() -> None:
    twice = imaged(crew_with({**MAIN, "image": "log:1"}, SIDE, images=("log:1",)), "web=web:2")

    assert (twice.images, twice.policies) == (("web:2", "log:1"), ("Always", "IfNotPresent"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("web:2", "has web, log; expected --image CONTAINER=IMAGE"),
        ("wep=web:2", "no container wep; there are web, log"),
    ],
)
def test_what_is_not_clear_is_refused(value: str, expected: str) -> None:
    with pytest.raises(BadChange, match=expected):
        imaged(crew_with(MAIN, SIDE), value)


@pytest.mark.parametrize("text", ["", "=web:2", "Web:2", "a=b=c d"])
def test_what_is_no_image_is_refused(text: str) -> None:
    with pytest.raises(BadChange, match="expected IMAGE or CONTAINER=IMAGE"):
        parse_image(text)
