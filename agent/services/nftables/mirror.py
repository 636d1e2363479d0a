# SPDX-License-Identifier: Apache-2.0
"""Keeps what is programmed in one family, and computes the batch that leads from there to the plans.

Invariant: rendering the Services of the mirror with their slots gives exactly the elements that kepd has in the kernel.
A batch is the difference between two renderings, so it writes what changed and nothing else.

Why it holds:

- The mirror changes by `commit` alone, and that follows a transaction that the kernel took whole. A batch that was
  refused, or a process that died on the way, leaves mirror and kernel as they were; `stage` changes nothing.
- Rendering depends on plan and slots alone. An endpoint keeps its slot while it serves, so one that is replaced
  differs in a single element, and 100 000 endpoints cost their plans and no second copy of what the kernel has.
- An element that several Services share (an address) is counted: the first adds it, the last takes it away. Choice
  chains are counted likewise; those that no element leads to any more go in a transaction of their own, some at a time.
- After a restart the mirror is empty and the kernel is not. `adopt` gives Services the slots that they have there, so
  that the first difference is mostly empty. What a process left that no plan explains goes in a full sync.
- What another program changes breaks the invariant until the watch or a full sync compares with a dump.

Owns: the Services as they were last written, and those counts. Never: writes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from agent.model.services.nft_table import Batch, Content, Data, TableState, client_map_of
from agent.model.services.service import ServiceKey
from agent.services.nftables.changes import Changes, Owner, Plans, Programmed, Shared, Staged, difference
from agent.services.nftables.elements import (
    MOST_STATIC,
    NO_SLOTS,
    NUMBER,
    Numbers,
    Rows,
    Slots,
    affinity_number,
    chains_of,
    differing,
    frontend_key,
    rows_of,
    shared_elements_of,
    slots_after_step,
    slots_of,
)
from agent.services.nftables.standing import Standing, frontends_of, without_spared
from agent.services.routes.frontends import PortPlan, ServicePlan


class Mirror:
    """One family. Changed by `commit` and `adopt` alone, which its sync calls."""

    def __init__(self) -> None:
        self.chains: frozenset[str] = frozenset()
        """All in the table, those that every table has included."""
        self.unused: set[str] = set()
        """Chains to which no element leads any more."""
        self._uses: Counter[str] = Counter()
        self._services: dict[ServiceKey, Programmed] = {}
        self._shared: Counter[Shared] = Counter()
        self._numbers: dict[bytes, Owner] = {}
        self.node: Content = {}
        """The elements that belong to no Service."""
        self._found: Callable[[str, bytes], tuple[bytes, ...]] = _nothing_found

    def __len__(self) -> int:
        return len(self._services)

    def adopt(self, state: TableState) -> None:
        """The kernel has this. Services that come now take the slots they have there."""
        self.chains = state.chains
        self.unused.clear()
        self._found = slots_in(state.content)

    def forget_dump(self) -> None:
        self._found = _nothing_found

    def stage(self, plans: Plans, node: Content | None = None) -> Staged:
        """From what is programmed to these plans; all other Services stay as they are."""
        prepared = self.prepare(plans, node)
        changes = Changes()
        for key, after in prepared.services.items():
            before, only = self._services.get(key), prepared.only.get(key)
            if before is not None:
                _collect(changes.gone, rows_of(before.plan, before.slots, only))
            if after is not None:
                _collect(changes.come, rows_of(after.plan, after.slots, only))
                changes.chains.update((one.name, one) for one in chains_of(after.plan, after.slots))
        self._count(prepared.shared, changes)
        for name in {*self.node, *prepared.node} if prepared.node is not self.node else ():
            changes.gone[name] = self.node.get(name, {})
            changes.come[name] = prepared.node.get(name, {})
        return replace(prepared, batch=changes.batch(self.chains))

    def stage_over(self, standing: Standing, plans: Plans) -> Staged:
        """To these plans from what the kernel has at their ways in; what else it has stays."""
        prepared = self.prepare(plans)
        changes = Changes()
        for after in prepared.services.values():
            if after is not None:
                _collect(changes.come, rows_of(after.plan, after.slots))
                changes.chains.update((one.name, one) for one in chains_of(after.plan, after.slots))
        for name, key, data in standing.of(frontends_of(plans.values())):
            changes.gone.setdefault(name, {})[key] = data
        for (name, item), delta in prepared.shared.items():
            if delta > 0 and item not in standing.content.get(name, {}):
                changes.come.setdefault(name, {})[item] = None
        return replace(prepared, batch=changes.batch(self.chains))

    def prepare(self, plans: Plans, node: Content | None = None) -> Staged:
        """The same without the batch, for a `repair` that finds out anyway what differs."""
        services: dict[ServiceKey, Programmed | None] = {}
        shared: Counter[Shared] = Counter()
        fresh: dict[bytes, Owner] = {}
        only: dict[ServiceKey, Sequence[Numbers]] = {}
        for key, plan in plans.items():
            before = self._services.get(key)
            after = None if plan is None else Programmed(plan, self._slots(plan, before, fresh))
            services[key] = after
            if before is not None and after is not None and _is_alike(before, after):
                only[key] = list(map(differing, before.slots, after.slots))
            if before is not None:
                gone = shared_elements_of(before.plan, before.slots, only.get(key))
                shared.subtract((name, item) for name, item, _ in gone)
            if after is not None:
                come = shared_elements_of(after.plan, after.slots, only.get(key))
                shared.update((name, item) for name, item, _ in come)
        return Staged(Batch(), services, shared, self.node if node is None else node, only)

    def _slots(self, plan: ServicePlan, before: Programmed | None, fresh: dict[bytes, Owner]) -> tuple[Slots, ...]:
        had: dict[tuple[str, str], tuple[PortPlan, Slots]] = {}
        if before is not None:
            had = {_identity(port): (port, own) for port, own in zip(before.plan.ports, before.slots, strict=True)}
        is_weighted = bool(plan.options.weights) or (before is not None and bool(before.plan.options.weights))
        found = []
        for port in plan.ports:
            was, slots = had.get(_identity(port)) or (None, self._find(port))
            is_remade = is_weighted or bool(port.hashing) or (was is not None and bool(was.hashing))
            if was is None or is_remade or (stepped := slots_after_step(port, was, slots)) is None:
                stepped = slots_of(port, slots, plan.options)
            found.append(self._numbered(plan.key, port, stepped, fresh))
        return tuple(found)

    def _numbered(self, key: ServiceKey, port: PortPlan, slots: Slots, fresh: dict[bytes, Owner]) -> Slots:
        """The slots with a number if clients are to come back, and without one if not."""
        if not port.affinity_s:
            return Slots(slots.cluster, slots.local) if slots.number else slots
        if slots.number:
            return slots
        owner = (key, *_identity(port))

        def is_taken(number: bytes) -> bool:
            return (self._numbers.get(number) or fresh.get(number) or owner) != owner

        number = affinity_number(key, port, is_taken)
        fresh[number] = owner
        return Slots(slots.cluster, slots.local, number)

    def _find(self, port: PortPlan) -> Slots:
        """What a dump says about a port that we know nothing of."""
        if self._found is _nothing_found or not port.frontends:
            return NO_SLOTS
        cluster: tuple[bytes, ...] = ()
        local: tuple[bytes, ...] = ()
        for frontend in port.frontends:
            key, prefix = frontend_key(frontend), "np_" if frontend.kind == "nodePort" else ""
            cluster = cluster or self._found(f"{prefix}eps", key)
            local = local or self._found(f"{prefix}eps_local", key)
        return Slots(cluster, local)

    def _count(self, deltas: Mapping[Shared, int], changes: Changes) -> None:
        """The first that needs a shared element brings it, the last takes it away."""
        for (name, item), delta in deltas.items():
            before = self._shared.get((name, item), 0)
            if delta > 0 and not before:
                changes.come.setdefault(name, {})[item] = None
            elif delta < 0 and before + delta <= 0:
                changes.gone.setdefault(name, {})[item] = None

    def commit(self, staged: Staged) -> None:
        for key, after in staged.services.items():
            before = self._services.pop(key, None)
            if before is not None and _has_own_chains(before):
                names = _names(before)
                self._uses.subtract(names)
                self.unused.update(name for name in names if self._uses[name] <= 0)
                for one in before.slots:
                    self._numbers.pop(one.number, None)
            if after is not None:
                self._services[key] = after
            if after is not None and _has_own_chains(after):
                self._uses.update(_names(after))
                for port, one in zip(after.plan.ports, after.slots, strict=True):
                    if one.number:
                        self._numbers[one.number] = (key, *_identity(port))
        for item, delta in staged.shared.items():
            self._shared[item] += delta
            if self._shared[item] <= 0:
                del self._shared[item]
        # A name that is in no use takes no place: affinity has one for each number of seconds and of endpoints.
        self._uses = +self._uses
        self.node = staged.node
        self.unused = {name for name in self.unused if self._uses[name] <= 0}
        self.committed_chains(staged.batch)

    def opposite(self, staged: Staged) -> Staged:
        """What to commit if the kernel does not take what is committed ahead of it."""
        services = {key: self._services.get(key) for key in staged.services}
        shared = {item: -delta for item, delta in staged.shared.items()}
        return Staged(Batch(gone_chains=[one.name for one in staged.batch.chains]), services, shared, self.node)

    def plans_of(self, keys: Iterable[ServiceKey]) -> dict[ServiceKey, ServicePlan | None]:
        """As they were written, of those that were."""
        return {key: self._services[key].plan for key in keys if key in self._services}

    def content(self, staged: Staged | None = None) -> Content:
        """Everything that should be in the kernel: what was committed, and on top what is staged."""
        if staged is None:
            staged = Staged(Batch(), {}, {}, self.node)
        found: Content = {name: dict(items) for name, items in staged.node.items()}
        for one in self._all(staged):
            _collect(found, rows_of(one.plan, one.slots))
        for item in {*self._shared, *staged.shared}:
            if self._shared.get(item, 0) + staged.shared.get(item, 0) > 0:
                found.setdefault(item[0], {})[item[1]] = None
        return found

    def _all(self, staged: Staged) -> Iterator[Programmed]:
        for key, one in self._services.items():
            if key not in staged.services:
                yield one
        for after in staged.services.values():
            if after is not None:
                yield after

    def repair(
        self,
        state: TableState,
        staged: Staged | None = None,
        spared: frozenset[bytes] = frozenset(),
        constant: frozenset[str] = frozenset(),
    ) -> Batch:
        """From what is in the kernel to what should be. `spared`: ways in that stay as are. The
        chains are made anew, but for the `constant` ones, which a refresh has made anew already."""
        changes = difference(state.content, self.content(staged))
        changes.gone = without_spared(changes.gone, changes.come, spared)
        for one in self._all(staged or Staged(Batch(), {}, {}, self.node)):
            changes.chains.update((chain.name, chain) for chain in chains_of(one.plan, one.slots))
        return changes.batch(constant)

    def committed_chains(self, batch: Batch) -> None:
        self.chains = self.chains.union(one.name for one in batch.chains).difference(batch.gone_chains)
        self.unused.difference_update(batch.gone_chains)

    @property
    def used(self) -> frozenset[str]:
        """Choice chains that elements lead to, but for those of every table."""
        return frozenset(name for name, count in self._uses.items() if count > 0)

    def spare_maps(self, chains: Iterable[str]) -> list[str]:
        """Own maps of clients into which these chains look, and no other."""
        gone = frozenset(chains)
        spare = {client_map_of(name) for name in gone} - {""}
        return sorted(spare.difference(map(client_map_of, self.chains - gone))) if spare else []

    def port_of(self, number: bytes) -> tuple[ServiceKey, PortPlan] | None:
        """Whose clients have this number."""
        owner = self._numbers.get(number)
        if owner is None:
            return None
        ports = self._services[owner[0]].plan.ports
        return next(((owner[0], one) for one in ports if _identity(one) == owner[1:]), None)

    @property
    def sharing_ports(self) -> int:
        """Ports with affinity whose clients have no map of their own."""
        return len(self._numbers) - len({client_map_of(name) for name in self.used} - {""})

    def is_member(self, pair: bytes) -> bool:
        """Whether clients may still come back to this endpoint: its data, and the number of the port."""
        return ("aff_cluster", pair) in self._shared or ("aff_local", pair) in self._shared

    def programmed(self, key: ServiceKey) -> Programmed | None:
        return self._services.get(key)

    def keys(self) -> Iterable[ServiceKey]:
        return self._services.keys()


def _is_alike(before: Programmed, after: Programmed) -> bool:
    """Whether they differ in endpoints alone."""
    had, has = before.plan.ports, after.plan.ports
    return len(had) == len(has) and all(
        (one.port, one.frontends, one.affinity_s, one.own_clients, one.hashing, own.number)
        == (other.port, other.frontends, other.affinity_s, other.own_clients, other.hashing, its.number)
        for one, other, own, its in zip(had, has, before.slots, after.slots, strict=True)
    )


def _has_own_chains(one: Programmed) -> bool:
    """Whether it needs chains that not every table has."""
    for port, own in zip(one.plan.ports, one.slots, strict=True):
        if port.affinity_s or len(own.cluster) > MOST_STATIC or len(own.local) > MOST_STATIC:
            return True
    return False


def _names(one: Programmed) -> set[str]:
    return {chain.name for chain in chains_of(one.plan, one.slots) if chain.timeout_s or chain.count > MOST_STATIC}


def _identity(port: PortPlan) -> tuple[str, str]:
    return (port.port.name, port.port.protocol)


def _collect(into: dict[str, dict[bytes, Data]], rows: Iterable[Rows]) -> None:
    for name, pairs in rows:
        found = into.get(name)
        if found is None:
            into[name] = dict(pairs)
        else:
            found.update(pairs)


def _nothing_found(_name: str, _key: bytes) -> tuple[bytes, ...]:
    return ()


def slots_in(content: Content) -> Callable[[str, bytes], tuple[bytes, ...]]:
    """Looks up the endpoints that a dump has for a frontend, in the order of their slots."""

    def find(name: str, key: bytes) -> tuple[bytes, ...]:
        elements = content.get(name, {})
        slots: list[bytes] = []
        while isinstance(data := elements.get(key + NUMBER.pack(len(slots))), bytes):
            slots.append(data)
        return tuple(slots)

    return find
