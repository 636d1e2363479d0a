# SPDX-License-Identifier: Apache-2.0
from agent.config.document import Configuration
from agent.config.keys import all_keys
from agent.config.reference import as_list, as_schema


def test_the_schema_knows_every_key() -> None:
    schema = as_schema()
    for path in all_keys(Configuration):
        node = schema
        for name in path.split("."):
            node = node["properties"][name]  # type: ignore[index,assignment]
        assert node["description"]


def test_the_fixed_names_are_there() -> None:
    """Other parts and users rely on these."""
    fixed = {
        *(f"node.{name}" for name in ("name", "stateDirectory", "runDirectory")),
        *(f"api.{name}" for name in ("socket", "httpAddress")),
        *(f"{plane}.enabled" for plane in ("images", "pods", "proxy", "services")),
        *(f"services.{name}" for name in ("backend", "source")),
        "runtime.endpoint",
        "kubernetes.kubeconfig",
        "manifests.directory",
        "images.maxParallelPulls",
        "proxy.socket",
    }

    assert fixed <= set(all_keys(Configuration))
    assert all(f"`{name}`" in as_list() for name in fixed)
