# SPDX-License-Identifier: Apache-2.0
from agent.config.document import Configuration
from agent.config.keys import all_keys
from agent.config.reference import as_schema, as_table


def test_the_schema_knows_every_key() -> None:
    schema = as_schema()
    for path in all_keys(Configuration):
        node = schema
        for name in path.split("."):
            node = node["properties"][name]  # type: ignore[index,assignment]
        assert node["description"]


def test_the_fixed_names_are_there() -> None:
    """Other parts and users rely on these."""
    fixed = (
        "node.name runtime.endpoint api.socket api.httpAddress kubernetes.kubeconfig manifests.directory "
        "images.enabled images.maxParallelPulls pods.enabled proxy.enabled proxy.socket services.enabled "
        "services.backend services.source node.stateDirectory node.runDirectory"
    ).split()

    assert set(fixed) <= set(all_keys(Configuration))
    assert all(f"`{name}`" in as_table() for name in fixed)
