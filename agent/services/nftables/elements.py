# SPDX-License-Identifier: Apache-2.0
"""A Service's plan as elements of the nftables maps. Same plan, same slots, same elements.

The slots say which endpoint has which number, so that a change touches few of them. Elements that several Services may
share are distinguished.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import sha256
from itertools import compress
from math import gcd
from operator import attrgetter, is_not
from struct import Struct

import msgspec

from agent.model.services.nft_table import ChoiceChain, Data, own_map
from agent.model.services.service import DEFAULT_OPTIONS, Backend, ServiceKey, ServiceOptions
from agent.services.objects.addresses import collapse
from agent.services.routes.frontends import Claim, Frontend, PortPlan, ServicePlan, port_name
from agent.services.routes.maglev import maglev_table

Element = tuple[str, bytes, Data]
"""Map, key, data."""
Rows = tuple[str, Sequence[tuple[bytes, Data]]]
"""Elements of one map: a Service has a few of these, and may have thousands of elements."""

Numbers = tuple[Sequence[int], Sequence[int]]
"""Slots of the cluster list and of the local one."""

PROTOCOLS = {"TCP": b"\x06\x00\x00\x00", "UDP": b"\x11\x00\x00\x00", "SCTP": b"\x84\x00\x00\x00"}
PORT = Struct(">HH")
NUMBER = Struct("=I")
_DATA = attrgetter("data")
SLOTS = [NUMBER.pack(number) for number in range(256)]
MOST_SLOTS = 256
MOST_STATIC = 16
"""Up to so many endpoints a choice chain is part of every table."""
PREFIXES = {"eps": "c", "eps_local": "l", "np_eps": "nc", "np_eps_local": "nl"}
"""Endpoint map → how its choice chains are called: `c_2`."""
HASHES = {"flow": "m", "source": "s"}
"""What stands before that where a hash chooses."""
DROP = ""
REJECT = "rj"


class Slots(msgspec.Struct, frozen=True, gc=False):
    """The endpoints of one service port by slot number, for both lists. `number` tells its clients from those of other
    ports, where they come back to the endpoint they had."""

    cluster: tuple[bytes, ...] = ()
    local: tuple[bytes, ...] = ()
    number: bytes = b""


NO_SLOTS = Slots()


def frontend_key(frontend: Frontend) -> bytes:
    """As the first level of maps has it: address (none for node ports), protocol, port."""
    address = frontend.ip.packed if frontend.ip is not None else b""
    return address + PROTOCOLS[frontend.protocol] + PORT.pack(frontend.port, 0)


def claim_in(key: bytes) -> Claim:
    address, protocol, port = key[:-8], key[-8:-4], key[-4:]
    return (address, next(name for name, code in PROTOCOLS.items() if code == protocol), PORT.unpack(port)[0])


def reslot(before: Sequence[bytes], wanted: Sequence[bytes]) -> tuple[bytes, ...]:
    """The wanted endpoints, each where it was if it was there: removing one moves the last into its place."""
    after = tuple(wanted)
    if not before or before == after:
        return after
    gone = set(before)
    fresh = [data for data in after if data not in gone]
    is_repeated = len(gone) < len(before)
    gone.difference_update(after)
    if is_repeated or len(before) - len(gone) + len(fresh) < len(after):
        return _reslot_repeated(before, after)
    return _refilled(before, gone, fresh, len(after))


def _refilled(
    before: Sequence[bytes], gone: Collection[bytes], fresh: Sequence[bytes], count: int
) -> tuple[bytes, ...]:
    moving = iter((*[data for data in before[count:] if data not in gone], *fresh))
    slots = list(before[:count])
    # A few of thousands: the search is quicker than a look at each.
    for number in sorted(before.index(data) for data in gone):
        if number < count:
            slots[number] = next(moving)
    return (*slots, *moving)


def _reslot_repeated(before: Sequence[bytes], wanted: Sequence[bytes]) -> tuple[bytes, ...]:
    missing = Counter(wanted)
    slots: list[bytes | None] = [None] * len(wanted)
    for number, data in enumerate(before[: len(wanted)]):
        if missing[data] > 0:
            missing[data] -= 1
            slots[number] = data
    rest = iter([data for data in (*before[len(wanted) :], *wanted) if _take(missing, data)])
    return tuple([next(rest) if data is None else data for data in slots])


def _take(missing: Counter[bytes], data: bytes) -> bool:
    if missing[data] <= 0:
        return False
    missing[data] -= 1
    return True


def differing(before: Slots, after: Slots) -> Numbers:
    return _differing(before.cluster, after.cluster), _differing(before.local, after.local)


def _differing(before: Sequence[bytes], after: Sequence[bytes]) -> Sequence[int]:
    if before == after:
        return ()
    both = min(len(before), len(after))
    # What is the same object needs no look at its bytes.
    found = compress(range(both), map(is_not, before, after))
    changed = [number for number in found if before[number] != after[number]]
    return [*changed, *range(both, max(len(before), len(after)))]


def slots_of(plan: PortPlan, before: Slots, options: ServiceOptions = DEFAULT_OPTIONS) -> Slots:
    if plan.hashing:
        chosen = plan.selection
        return Slots(_hashed(chosen.cluster or (), options), _hashed(chosen.local or (), options), before.number)
    cluster = _weighted(plan.selection.cluster or (), options)
    local = _weighted(plan.selection.local or (), options)
    return Slots(reslot(before.cluster, cluster), reslot(before.local, local), before.number)


def slots_after_step(plan: PortPlan, was: PortPlan, before: Slots) -> Slots | None:
    """The same where the plan is one step from what it was and has no weights; None: it is not."""
    step = plan.step
    if step is None or was.selection.cluster is not step.before or len(before.cluster) != len(step.before):
        return None
    gone, fresh = {one.data for one in step.gone}, [one.data for one in step.come]
    cluster = _refilled(before.cluster, gone, fresh, len(plan.selection.everyone))
    return Slots(cluster, reslot(before.local, _weighted(plan.selection.local or (), DEFAULT_OPTIONS)), before.number)


def _hashed(backends: Sequence[Backend], options: ServiceOptions) -> tuple[bytes, ...]:
    """Who has which slot follows from the endpoints alone, whatever was there before."""
    weights = _shares(backends, options)
    table = maglev_table(tuple([one.key for one in backends]), tuple(weights))
    return tuple([backends[owner].data for owner in table])


def _shares(backends: Sequence[Backend], options: ServiceOptions) -> list[int]:
    """Weights in smallest terms; none, where all are alike."""
    if not options.weights:
        return []
    given = dict(options.weights)
    found = [given.get(one.address, given.get(f"node:{one.node}", 1)) for one in backends]
    divisor = gcd(*found)
    return [weight // divisor for weight in found] if divisor else []


def _weighted(backends: Sequence[Backend], options: ServiceOptions) -> list[bytes]:
    """An endpoint stands in as many slots as its weight; all of weight 0 serve only if nobody else does."""
    if not options.weights:
        return [*map(_DATA, backends)]
    shares = _shares(backends, options)
    if not shares:
        return [*map(_DATA, backends)]
    # Too many slots: coarser, but nobody with a weight loses all of it.
    scale = max(1, -(-sum(shares) // MOST_SLOTS))
    return [one.data for one, share in zip(backends, shares, strict=True) for _ in range(-(-share // scale))]


def choice_chain(map_name: str, count: int, port: PortPlan, slots: Slots) -> ChoiceChain:
    """The chain that picks one of so many slots: `c_3`, or `c_3_600` where clients come back.

    `c_3_600_1a2b3c4d_4096` belongs to one port, whose clients have a map of that name. `mc_251` and `sc_251` have
    slots of a table that every node has: by a hash of addresses and ports, or of the client's address.
    """
    if port.hashing:
        name = f"{HASHES[port.hashing]}{PREFIXES[map_name]}_{count}"
        return ChoiceChain(name, map_name, count, hashing=port.hashing)
    name = f"{PREFIXES[map_name]}_{count}_{port.affinity_s}" if port.affinity_s else f"{PREFIXES[map_name]}_{count}"
    if port.affinity_s and port.own_clients:
        name += own_map(slots.number, port.own_clients).removeprefix("cl")
    return ChoiceChain(name, map_name, count, port.affinity_s)


def affinity_number(key: ServiceKey, plan: PortPlan, is_taken: Callable[[bytes], bool]) -> bytes:
    """A number that no other port has; nearly always the same after a restart, so that clients come back even then."""
    text = f"{port_name(key, plan.port.name)}/{plan.port.protocol}"
    number = sha256(text.encode()).digest()[:4]
    while is_taken(number):
        number = sha256(number).digest()[:4]
    return number


def elements_of(plan: ServicePlan, slots: Sequence[Slots]) -> Iterator[Element]:
    for name, pairs in rows_of(plan, slots):
        for key, data in pairs:
            yield name, key, data


def rows_of(plan: ServicePlan, slots: Sequence[Slots], only: Sequence[Numbers | None] | None = None) -> Iterator[Rows]:
    """The same, map by map. `only`: of each port's endpoints those in these slots."""
    for port, own, numbers in zip(plan.ports, slots, only or (None,) * len(slots), strict=True):
        for frontend in port.frontends:
            yield from _frontend(frontend, port, own, numbers)


def _frontend(one: Frontend, port: PortPlan, slots: Slots, only: Numbers | None) -> Iterator[Rows]:
    key = frontend_key(one)
    is_node_port = one.kind == "nodePort"
    if one.verdict == "pass":
        if not is_node_port:
            yield "passed", ((key, None),)
        return
    first, prefix, firewall = ("nodeports", "n", "nfw") if is_node_port else ("services", "x", "fw")
    if one.kind == "clusterIP":
        yield from _cluster_ip(one, key, port, slots, only)
    elif not slots.cluster:
        yield first, ((key, f"{firewall}_rj" if one.is_restricted else _end(one)),)
    else:
        policy = "local" if one.is_local_policy else "cluster"
        yield first, ((key, f"{firewall if one.is_restricted else prefix}_{policy}"),)
        yield from _outside(one, key, port, slots, only)
    if slots.number and (slots.cluster or slots.local):
        yield "np_aff_port" if is_node_port else "aff_port", ((key, slots.number),)
    if one.ranges:
        yield (
            "np_allow" if is_node_port else "fw_allow",
            [(key + item.first + key + item.last, None) for item in collapse(one.ranges)],
        )


def _end(one: Frontend) -> str:
    return REJECT if one.verdict == "reject" else DROP


def _cluster_ip(one: Frontend, key: bytes, port: PortPlan, slots: Slots, only: Numbers | None) -> Iterator[Rows]:
    name, chosen = ("eps_local", slots.local) if one.is_local_policy else ("eps", slots.cluster)
    numbers = only and only[one.is_local_policy]
    if not chosen:
        yield "services", ((key, _end(one)),)
        return
    yield "services", ((key, choice_chain(name, len(chosen), port, slots).name),)
    yield name, _endpoints(key, chosen, numbers)


def _outside(one: Frontend, key: bytes, port: PortPlan, slots: Slots, only: Numbers | None) -> Iterator[Rows]:
    """The second level, which traffic from elsewhere reaches once it is marked or not."""
    cluster_map, local_map, eps, eps_local = (
        ("np_cluster", "np_local", "np_eps", "np_eps_local")
        if one.kind == "nodePort"
        else ("svc_cluster", "svc_local", "eps", "eps_local")
    )
    yield cluster_map, ((key, choice_chain(eps, len(slots.cluster), port, slots).name),)
    yield eps, _endpoints(key, slots.cluster, only and only[0])
    if not one.is_local_policy:
        return
    if slots.local:
        yield local_map, ((key, choice_chain(eps_local, len(slots.local), port, slots).name),)
        yield eps_local, _endpoints(key, slots.local, only and only[1])
    elif one.verdict == "reject":
        yield local_map, ((key, REJECT),)


def _endpoints(key: bytes, slots: Sequence[bytes], only: Sequence[int] | None) -> list[tuple[bytes, Data]]:
    if only is not None:
        return [(key + NUMBER.pack(number), slots[number]) for number in only if number < len(slots)]
    if len(slots) > MOST_SLOTS:
        return [(key + NUMBER.pack(number), data) for number, data in enumerate(slots)]
    return [(key + number, data) for number, data in zip(SLOTS, slots, strict=False)]


def shared_elements_of(
    plan: ServicePlan, slots: Sequence[Slots], only: Sequence[Numbers | None] | None = None
) -> Iterator[Element]:
    """Those that other ports or Services may have too, so that they go when the last of them goes."""
    yield "cluster_ips", plan.cluster_ip.packed, None
    aliases = {way.ip.packed for port in plan.ports for way in port.frontends if way.kind == "clusterIP" and way.ip}
    for packed in sorted(aliases - {plan.cluster_ip.packed}):
        yield "cluster_ips", packed, None
    for port, own, numbers in zip(plan.ports, slots, only or (None,) * len(slots), strict=True):
        protocol = PROTOCOLS[port.port.protocol]
        for backend in port.local:
            address = backend.data[:-4]
            yield "hairpin", address + address + protocol + backend.data[-4:], None
        if own.number:
            for data in _of(own.cluster, numbers and numbers[0]):
                yield "aff_cluster", data + own.number, None
            for data in _of(own.local, numbers and numbers[1]):
                yield "aff_local", data + own.number, None


def _of(slots: Sequence[bytes], only: Sequence[int] | None) -> Sequence[bytes]:
    return slots if only is None else [slots[number] for number in only if number < len(slots)]


def chains_of(plan: ServicePlan, slots: Sequence[Slots]) -> Iterator[ChoiceChain]:
    for port, own in zip(plan.ports, slots, strict=True):
        for frontend in port.frontends:
            is_node_port = frontend.kind == "nodePort"
            for name, chosen in (("eps", own.cluster), ("eps_local", own.local)):
                if chosen:
                    yield choice_chain(f"np_{name}" if is_node_port else name, len(chosen), port, own)
