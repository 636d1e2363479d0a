# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from agent.config.diff import plan_reload
from agent.config.document import Configuration


def test_a_reload_of_the_same_changes_nothing() -> None:
    plan = plan_reload(Configuration(), Configuration())

    assert (plan.applied, plan.waiting_for_restart) == ((), ())
    assert plan.configuration == Configuration()


def test_keys_that_need_a_restart_are_named_and_keep_their_old_value() -> None:
    """CFG-05."""
    running = Configuration()
    wanted = replace(
        running,
        node=replace(running.node, name="other", addresses=("10.0.0.1",)),
        pods=replace(running.pods, logs=replace(running.pods.logs, max_size=2**20), profile="kubelet"),
    )
    plan = plan_reload(running, wanted)

    assert [str(change) for change in plan.applied] == [
        "node.addresses: [] -> ['10.0.0.1']",
        "pods.logs.maxSize: '10Mi' -> '1Mi'",
    ]
    assert [change.path for change in plan.waiting_for_restart] == ["node.name", "pods.profile"]
    assert plan.configuration.node.name == running.node.name
    assert plan.configuration.pods.logs.max_size == 2**20
    assert plan.configuration.pods.profile == "kepd"
