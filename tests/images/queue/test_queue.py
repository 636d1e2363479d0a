# SPDX-License-Identifier: Apache-2.0
"""The pull queue: who starts, who shares, who waits for what. The vectors have the long stories; these are the laws."""

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.images.queue.flights import FlightKey, FlightMember
from agent.images.queue.plan import NODE, WaitReason
from agent.images.queue.queue import PullQueue
from agent.images.queue.rules import QueueRules, Rate
from agent.model.images.pull import PullClass, PullPolicy
from tests.images.queue.simulator import KEPD, MODES, Simulation, read_rules

ALWAYS, IF_NOT_PRESENT = PullPolicy.ALWAYS, PullPolicy.IF_NOT_PRESENT


def queue(**rules) -> PullQueue:
    return PullQueue(QueueRules(**rules))


def arrive(
    pulls, name, index=1, at_s=0.0, pod="", priority=0, policy=IF_NOT_PRESENT, prefetch=False, size=None, creds="public"
):
    registry = name.partition("/")[0]
    member = FlightMember(f"r{index}", index, at_s, pod or f"pod{index}", priority, policy, prefetch)
    return pulls.arrive(member, FlightKey(name, "", creds), registry, size)


def reasons(plan) -> list[WaitReason]:
    return [waiting.why.reason for waiting in plan.waiting]


def test_a_plan_reads_as_one_line_per_action() -> None:
    """STY-02."""
    pulls = queue(max_parallel=1)
    arrive(pulls, "a.io/x:1", 1)
    arrive(pulls, "a.io/y:1", 2)

    assert str(pulls.dispatch(0)) == "start flight 1\nflight 2 waits at 1: 1 of 1 slots busy"


def test_planning_again_gives_an_empty_plan_with_the_same_reasons() -> None:
    """STY-03."""
    pulls = queue(max_parallel=2, critical_reserve=1, per_pod_max=1, fair_share_s=15)
    for index in range(6):
        arrive(pulls, f"a.io/x{index}:1", index, pod=f"p{index // 2}")
    first = pulls.dispatch(1)
    second = pulls.dispatch(1)

    assert second.is_empty
    assert second.waiting == first.waiting


def test_the_reason_names_the_limit_that_holds_a_pull() -> None:
    """IMG-S07, IMG-S16, IMG-S19."""
    pulls = queue(
        max_parallel=4, per_registry={"a.io": 1}, per_pod_max=1, large_bytes=100, large_max=1, critical_reserve=1
    )
    arrive(pulls, "a.io/1:1", 1, pod="p")
    arrive(pulls, "a.io/2:1", 2)
    arrive(pulls, "b.io/3:1", 3, pod="p")
    arrive(pulls, "b.io/4:1", 4, size=100)
    arrive(pulls, "b.io/5:1", 5, size=200)
    arrive(pulls, "a.io/1:1", 6, creds="other")
    plan = pulls.dispatch(0)
    texts = {waiting.flight: str(waiting.why) for waiting in plan.waiting}

    assert plan.starts == (1, 4)
    assert texts[2] == "1 of 1 pulls from a.io running"
    assert texts[3] == "1 of 1 slots of its pod busy"
    assert texts[5] == "1 of 1 slots for large images busy"
    assert texts[6].startswith("the same image is being pulled")


def test_registries_of_one_group_share_its_limit() -> None:
    """IMG-R02: mirrors may be counted together."""
    pulls = queue(per_registry={"eu": 1}, registry_groups={"a.io": "eu", "b.io": "eu"})
    arrive(pulls, "a.io/1:1", 1)
    arrive(pulls, "b.io/1:1", 2)
    arrive(pulls, "c.io/1:1", 3)

    assert pulls.dispatch(0).starts == (1, 3)


def test_a_joining_critical_pod_raises_a_waiting_pull_and_leaving_lowers_it() -> None:
    """IMG-S09: priority inheritance."""
    pulls = queue(max_parallel=1)
    arrive(pulls, "a.io/run:1", 1)
    pulls.dispatch(0)
    arrive(pulls, "a.io/x:1", 2, at_s=1)
    flight = arrive(pulls, "a.io/y:1", 3, at_s=2)
    joined = arrive(pulls, "a.io/y:1", 4, at_s=3, priority=2_000_001_000)

    assert joined.number == flight.number
    assert joined.pull_class is PullClass.CRITICAL
    assert [waiting.flight for waiting in pulls.plan(3).waiting] == [3, 2]

    pulls.leave("r4", 3)

    assert [waiting.flight for waiting in pulls.plan(3).waiting] == [2, 3]


def test_a_running_pull_ends_when_its_last_member_leaves_and_frees_its_slot_at_once() -> None:
    """IMG-S17."""
    pulls = queue(max_parallel=1)
    arrive(pulls, "a.io/x:1", 1)
    arrive(pulls, "a.io/x:1", 2)
    arrive(pulls, "a.io/y:1", 3)
    pulls.dispatch(0)

    assert pulls.leave("r1", 1) is None
    assert pulls.leave("r2", 1).number == 1
    assert pulls.dispatch(1).starts == (2,)
    assert pulls.leave("r2", 1) is None


def test_an_orphan_that_is_nearly_done_is_finished() -> None:
    """IMG-S18."""
    pulls = queue(max_parallel=1)
    arrive(pulls, "a.io/x:1", 1)
    pulls.dispatch(0)

    assert pulls.leave("r1", 1, done_share=0.95) is None
    assert pulls.plan(1000).cancels == ()
    assert pulls.flights[1].pull_class is PullClass.PREFETCH


def test_an_orphan_waits_its_grace_for_a_new_home() -> None:
    """IMG-S18."""
    pulls = queue(max_parallel=1, cancel_grace_s=10)
    arrive(pulls, "a.io/x:1", 1)
    pulls.dispatch(0)
    pulls.leave("r1", 5)

    assert pulls.plan(14).wake_at_s == 15
    assert pulls.plan(15).cancels == (1,)

    arrive(pulls, "a.io/x:1", 2, at_s=14)

    assert pulls.dispatch(15).cancels == ()


def test_an_always_request_does_not_join_an_old_pull_of_a_tag_but_does_join_one_of_a_digest() -> None:
    """IMG-S04."""
    pulls = queue()
    digest = "a.io/x@sha256:" + "0" * 64
    arrive(pulls, "a.io/x:1", 1)
    arrive(pulls, digest, 2)
    pulls.dispatch(0)

    assert arrive(pulls, "a.io/x:1", 3, at_s=60, policy=ALWAYS).number == 1
    assert arrive(pulls, "a.io/x:1", 4, at_s=60.5, policy=ALWAYS).number == 3
    assert arrive(pulls, digest, 5, at_s=1000, policy=ALWAYS).number == 2


def test_lowering_the_limit_stops_nothing_and_raising_it_starts_at_once() -> None:
    """IMG-S20."""
    pulls = queue(max_parallel=2)
    for index in (1, 2, 3, 4):
        arrive(pulls, f"a.io/{index}:1", index)
    pulls.dispatch(0)
    pulls.set_rules(QueueRules(max_parallel=1), 1)
    pulls.end(1)

    assert pulls.dispatch(1).starts == ()

    pulls.set_rules(QueueRules(max_parallel=3), 2)

    assert pulls.dispatch(2).starts == (3, 4)


def test_a_registry_that_asked_for_a_pause_gets_one_and_the_others_go_on() -> None:
    """IMG-B06: class rate."""
    pulls = queue()
    pulls.hold("a.io", 60)
    arrive(pulls, "a.io/1:1", 1)
    arrive(pulls, "b.io/1:1", 2)
    plan = pulls.dispatch(0)

    assert plan.starts == (2,)
    assert reasons(plan) == [WaitReason.REGISTRY_HOLD]
    assert plan.wake_at_s == 60
    assert pulls.dispatch(60).starts == (1,)


def test_a_full_disk_holds_everything_until_it_is_released() -> None:
    """IMG-B06: class nospace."""
    pulls = queue()
    pulls.hold(NODE, 600)
    arrive(pulls, "a.io/1:1", 1)

    assert reasons(pulls.dispatch(0)) == [WaitReason.NODE_HOLD]

    pulls.release(NODE)

    assert pulls.dispatch(1).starts == (1,)


def test_a_rate_delays_and_says_when_the_next_may_start() -> None:
    """IMG-S19, also per registry."""
    pulls = queue(registry_rates={"a.io": Rate(0.5, 1)})
    for index in (1, 2):
        arrive(pulls, f"a.io/{index}:1", index)
    arrive(pulls, "b.io/1:1", 3)
    plan = pulls.dispatch(10)

    assert plan.starts == (1, 3)
    assert plan.wake_at_s == 12
    assert pulls.dispatch(11.9).starts == ()
    assert pulls.dispatch(12).starts == (2,)


def test_prefetches_yield_to_pods_and_a_pod_turns_one_into_its_own() -> None:
    """IMG-S16."""
    pulls = queue(max_parallel=2)
    arrive(pulls, "a.io/1:1", 1, prefetch=True)
    arrive(pulls, "a.io/2:1", 2, prefetch=True)
    plan = pulls.dispatch(0)

    assert plan.starts == (1,)
    assert reasons(plan) == [WaitReason.PREFETCH]

    arrive(pulls, "a.io/2:1", 3, at_s=1)

    assert pulls.dispatch(1).starts == (2,)
    assert pulls.flights[2].pull_class is PullClass.POD


def test_who_is_served_while_waiting_leaves_the_queue() -> None:
    """IMG-S06."""
    pulls = queue(max_parallel=1)
    arrive(pulls, "a.io/run:1", 1)
    pulls.dispatch(0)
    arrive(pulls, "a.io/x:1", 2)
    arrive(pulls, "a.io/x:1", 3, policy=ALWAYS)
    served = pulls.drop_present(lambda key: key.reference == "a.io/x:1")

    assert [member.id for member in served] == ["r2"]
    assert [member.id for member in pulls.flights[2].members] == ["r3"]
    assert pulls.home("r2") is None


def test_one_reference_for_two_runtime_handlers_is_two_images() -> None:
    """IMG-S15: both may be pulled at once."""
    pulls = queue()
    for index, handler in enumerate(("", "kata")):
        member = FlightMember(f"r{index}", index, 0.0, f"pod{index}", 0, IF_NOT_PRESENT, False)
        pulls.arrive(member, FlightKey("a.io/x:1", handler), "a.io")

    assert pulls.dispatch(0).starts == (1, 2)


def test_the_lowest_score_starts_and_arrival_breaks_ties() -> None:
    """IMG-S08, S10, S11: age, priority, size, and what the pod has running."""
    rules = {"max_parallel": 1, "size_rate": 10, "size_unknown_s": 10, "fair_share_s": 15}
    pulls = queue(**rules)
    arrive(pulls, "a.io/run:1", 1, pod="busy")
    pulls.dispatch(0)
    arrive(pulls, "a.io/large:1", 2, at_s=1, size=80)
    arrive(pulls, "a.io/small:1", 3, at_s=1, size=10)
    arrive(pulls, "a.io/twin:1", 4, at_s=1, size=10)
    arrive(pulls, "a.io/unknown:1", 5, at_s=1)
    arrive(pulls, "a.io/ranked:1", 6, at_s=1, priority=1, size=100)
    arrive(pulls, "a.io/same-pod:1", 7, at_s=1, pod="busy", size=10)

    assert [waiting.flight for waiting in pulls.plan(2).waiting] == [6, 3, 4, 2, 5, 7]


def test_the_kubelet_profile_is_first_come_first_served() -> None:
    """IMG-S02."""
    rules = QueueRules(max_parallel=1, per_pod_max=1, fair_share_s=15, size_rate=1, per_registry_default=1).as_kubelet()
    pulls = PullQueue(rules)
    arrive(pulls, "a.io/1:1", 1, at_s=0, size=10**9)
    arrive(pulls, "a.io/2:1", 2, at_s=1, priority=2_000_001_000)
    arrive(pulls, "a.io/1:1", 3, at_s=2)

    assert [waiting.flight for waiting in pulls.dispatch(3).waiting] == [2, 3]


CRITICAL = 2_000_001_000
LENDING = {"max_parallel": 3, "critical_reserve": 1, "size_rate": 100, "lend_s": 2}


def test_a_reserved_slot_is_lent_as_long_as_all_that_run_are_short() -> None:
    """IMG-S07, S13: who lends it has it back in a moment; a batch of small images does not pay for the reserve."""
    pulls = queue(**LENDING)
    for index in (1, 2, 3, 4):
        arrive(pulls, f"a.io/{index}:1", index, size=200)
    plan = pulls.dispatch(0)
    arrive(pulls, "a.io/5:1", 5, at_s=1, priority=CRITICAL)
    pulls.end(1)

    assert plan.starts == (1, 2, 3)
    assert reasons(plan) == [WaitReason.SLOT]
    assert pulls.dispatch(1).starts == (5,)


def test_a_reserved_slot_is_kept_where_one_pull_is_long_unknown_or_overdue() -> None:
    """IMG-S07: a critical pull must not wait for those."""
    for size, now_s in ((201, 0), (None, 0), (200, 21)):
        pulls = queue(**LENDING)
        arrive(pulls, "a.io/1:1", 1, size=size)
        arrive(pulls, "a.io/2:1", 2, size=1)
        pulls.dispatch(0)
        arrive(pulls, "a.io/3:1", 3, at_s=now_s, size=1)
        plan = pulls.dispatch(now_s)

        assert reasons(plan) == [WaitReason.RESERVE]

        arrive(pulls, "a.io/4:1", 4, at_s=now_s, priority=CRITICAL)

        assert pulls.dispatch(now_s).starts == (4,)


def test_a_long_pull_and_a_prefetch_are_lent_nothing() -> None:
    """IMG-S07, S16."""
    pulls = queue(**LENDING)
    for index in (1, 2):
        arrive(pulls, f"a.io/{index}:1", index, size=1)
    pulls.dispatch(0)
    arrive(pulls, "a.io/3:1", 3, size=201)
    arrive(pulls, "a.io/4:1", 4, size=1, prefetch=True)

    assert reasons(pulls.dispatch(0)) == [WaitReason.RESERVE, WaitReason.RESERVE]


# laws over random stories

REFS = [f"{registry}.io/{name}:1" for registry in "ab" for name in "uvwxyz"]
ARRIVALS = st.lists(
    st.fixed_dictionaries(
        {
            "t": st.integers(0, 60),
            "ref": st.sampled_from(REFS),
            "pod": st.sampled_from(["p1", "p2", "p3", "p4"]),
            "priority": st.sampled_from([-5, 0, 0, 0, 1000, 2_000_000_000, 2_000_001_000]),
            "policy": st.sampled_from(["IfNotPresent", "Always"]),
            "size": st.sampled_from([None, 10**6, 10**9, 5 * 10**9]),
            "creds": st.sampled_from(["public", "team-x"]),
            "class": st.sampled_from(["pod", "pod", "pod", "prefetch"]),
        }
    ),
    max_size=25,
)
CONFIGS = st.fixed_dictionaries(
    {"max_parallel": st.integers(1, 4)},
    optional={
        "critical_reserve": st.just(0),
        "per_pod_max": st.integers(1, 3),
        "fair_share_s": st.sampled_from([0, 15]),
        "size_rate_bps": st.just(10**8),
        "large_bytes": st.just(10**9),
        "large_max": st.integers(1, 2),
        "per_registry": st.just({"a.io": 1}),
        "qps": st.sampled_from([0, 1]),
        "burst": st.integers(1, 3),
    },
)


def story(arrivals, config, cancels) -> dict:
    images = {ref: {"service_s": 3 + position, "fail": position == 5} for position, ref in enumerate(REFS)}
    named = [{**one, "id": f"r{index}", "registry": one["ref"].partition("/")[0]} for index, one in enumerate(arrivals)]
    events = [{"t": moment, "cancel": f"r{index}"} for index, moment in cancels.items()]
    return {
        "config": config, "service": {"model": "fixed", "revalidate_s": 0.5}, "images": images, "arrivals": named,
        "events": sorted(events, key=lambda one: one["t"]),
    }  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(ARRIVALS, CONFIGS, st.dictionaries(st.integers(0, 24), st.integers(0, 80), max_size=5), st.sampled_from(MODES))
def test_every_request_ends_and_never_more_run_than_may(arrivals, config, cancels, mode) -> None:
    """IMG-N03."""
    outcome = Simulation(story(arrivals, config, cancels), mode).run()
    limit = 1 if mode == "kubelet_serial" else config["max_parallel"]

    assert all(ask.is_over for ask in outcome.asks)
    assert outcome.peak <= limit
    assert not outcome.queue.flights


@settings(deadline=None, max_examples=60)
@given(ARRIVALS, CONFIGS, st.sampled_from(MODES))
def test_equal_stories_end_equally(arrivals, config, mode) -> None:
    """IMG-N03."""
    runs = [Simulation(story(arrivals, config, {}), mode).run() for _ in range(2)]

    assert runs[0].asks == runs[1].asks
    assert runs[0].start_order == runs[1].start_order


@settings(deadline=None, max_examples=80)
@given(ARRIVALS, CONFIGS)
def test_nobody_starves(arrivals, config) -> None:
    """IMG-S12: a pull that is eligible all the time is overtaken only by those that came within the bound."""
    ordinary = [{**one, "class": "pod"} for one in arrivals]
    config = {
        name: value for name, value in config.items() if name in ("max_parallel", "fair_share_s", "size_rate_bps")
    }
    outcome = Simulation(story(ordinary, config, {}), KEPD).run()
    bound = 600 + 60 + 120 + config.get("fair_share_s", 0) * config["max_parallel"]
    started = [ask for ask in outcome.asks if ask.start is not None]

    for ask in started:
        assert not [one for one in started if one.t >= ask.t + bound and one.start < ask.start]


@settings(deadline=None, max_examples=80)
@given(ARRIVALS, CONFIGS, st.integers(0, 200))
def test_a_plan_carried_out_leaves_nothing_to_do(arrivals, config, now) -> None:
    """STY-03: idempotence; and from any prefix of the starts the rest is started."""
    pulls = PullQueue(read_rules(config))
    for index, one in enumerate(arrivals):
        arrive(
            pulls, one["ref"], index, at_s=one["t"], pod=one["pod"], priority=one["priority"], creds=one["creds"],
            policy=PullPolicy(one["policy"]), size=one["size"], prefetch=one["class"] == "prefetch",
        )  # fmt: skip
    plan = pulls.plan(now)
    carried_out = pulls.dispatch(now)

    assert plan.starts == carried_out.starts
    assert pulls.plan(now).is_empty
    assert len({flight.key.image for flight in pulls.flights.values() if flight.is_running}) == len(plan.starts)
