# SPDX-License-Identifier: Apache-2.0
"""`kepctl inspect image`: what an image of the node is made of, who uses it, who may."""

import json

import pytest

from agent.images.access.grants import AccessRules, Proofs, SecretProof, VerifyPolicy, who_may_use
from agent.images.run.node_images import find_image
from agent.model.images.state import ImageState, InspectedLayer, InspectedPlatform
from agent.model.images.store import BlobInfo, ImageRecord
from tests.images.run.test_puller import A, Node

LAYERS = [{"digest": f"sha256:{letter * 64}", "size": size} for letter, size in (("a", 100), ("b", 20))]
ARM, X86, INDEX = (f"sha256:{letter * 64}" for letter in "def")


def put(node: Node, digest: str, document: object, size: int = 0) -> None:
    content = json.dumps(document).encode()
    node.containerd.put_blob(BlobInfo(digest, size or len(content), 0.0), content)


async def pulled(node: Node) -> str:
    async with node.up():
        return (await node.ask(A, pod="")).image_id


async def test_an_image_of_an_index_shows_its_layers_platforms_and_users() -> None:
    node = Node()
    image_id = await pulled(node)
    entries = [
        {"digest": ARM, "size": 1, "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}},
        {"digest": X86, "size": 2, "platform": {"os": "linux", "architecture": "amd64"}},
    ]
    put(node, INDEX, {"manifests": entries})
    put(node, X86, {"config": {"digest": image_id, "size": 7}, "layers": LAYERS})
    put(node, LAYERS[0]["digest"], {}, 100)
    node.containerd.records[A] = ImageRecord(A, INDEX, "application/vnd.oci.image.index.v1+json", 2, 0.0)
    found = await node.plane.inspector.inspect(A)

    assert found.image.names == (A,)
    assert (found.reference, found.digest, found.manifest_digest) == (A, INDEX, X86)
    assert found.platforms == (
        InspectedPlatform("linux/arm64/v8", ARM, False),
        InspectedPlatform("linux/amd64", X86, True),
    )
    assert found.layers == (
        InspectedLayer(LAYERS[0]["digest"], 100, True),
        InspectedLayer(LAYERS[1]["digest"], 20, False),
    )
    assert found.total_bytes > 127
    assert found.may_use == ("every pod: it was pulled without credentials, or with those of the node",)
    assert found.notes == ()
    assert (await node.plane.inspector.inspect(image_id[7:27])).image.id == image_id
    assert await node.plane.inspector.inspect("r.io/nothing:1") is None


@pytest.mark.parametrize("document", [None, {}, {"manifests": []}, [], {"manifests": [{"digest": 5}]}])
async def test_what_the_runtime_did_not_keep_is_said_to_be_unknown(document: object) -> None:
    """discard_unpacked_layers, or a manifest that is damaged."""
    node = Node()
    await pulled(node)
    if document is not None:
        put(node, INDEX, document)
        node.containerd.records[A] = ImageRecord(A, INDEX, "", 2, 0.0)
    found = await node.plane.inspector.inspect(A)

    assert found.layers == ()
    assert found.notes == ("the runtime did not keep its manifest, so its layers are unknown",)


def test_an_image_is_found_by_name_by_id_and_by_the_beginning_of_one() -> None:
    one, two = (
        ImageState(id=f"sha256:{'ab' * 6}{letter * 52}", names=(f"docker.io/library/{letter}:latest",), size_bytes=1)
        for letter in "cd"
    )
    states = [one, two]

    assert find_image("c", states) is one
    assert find_image("docker.io/library/d:latest", states) is two
    assert find_image(one.id, states) is one
    assert find_image(two.id[7:20], states) is two
    for ambiguous in ("ab" * 6, "ab", "", "no such image", "sha256:"):
        assert find_image(ambiguous, states) is None


SECRETS = Proofs(secrets=tuple(SecretProof("ns", name, "u", "hash-of-it") for name in ("b", "a", "a")))
OTHERS = "any other pod after a pull with its own credentials, which fetches nothing again"


@pytest.mark.parametrize(
    ("rules", "is_ours", "proofs", "said"),
    [
        (AccessRules(policy=VerifyPolicy.NEVER), True, SECRETS, ["every pod: images.verify.policy is NeverVerify,"]),
        (AccessRules(), False, None, ["every pod: images.verify.policy is NeverVerifyPreloadedImages,"]),
        (AccessRules(), True, None, [OTHERS]),
        (AccessRules(), True, SECRETS, ["pods with the pull secret ns/a,", "pods with the pull secret ns/b,", OTHERS]),
        (AccessRules(max_age_s=60), True, Proofs(is_node_wide=True), ["every pod: it was pulled", "each of these for"]),
    ],
)
def test_who_may_use_an_image_is_said_without_a_hash(
    rules: AccessRules, is_ours: bool, proofs: Proofs | None, said: list[str]
) -> None:
    found = who_may_use("r.io/x:1", proofs, rules, is_pulled_by_us=is_ours)

    assert len(found) == len(said)
    assert all(one.startswith(begin) for one, begin in zip(found, said, strict=True))
    assert "hash-of-it" not in "".join(found)
