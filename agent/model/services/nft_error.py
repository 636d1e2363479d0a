# SPDX-License-Identifier: Apache-2.0
"""How work on our rules fails, in nftables or iptables, in words a plane can act on: what, where, what is expected."""

import errno as codes


class NftFailed(Exception):
    """Whatever went wrong with the rules; nothing was changed, unless the class says otherwise."""


class RulesRefused(NftFailed):
    """The kernel, nft or iptables-restore refused a transaction as a whole; nothing was changed. `map` and
    `key`, or `chain`, name the culprit as far as the kernel tells. `errno` is 0 if a program refused a text."""

    def __init__(self, reason: str, *, errno: int = 0, map: str = "", key: bytes = b"", chain: str = "") -> None:  # noqa: A002
        super().__init__(reason)
        self.errno = errno
        self.map = map
        self.key = key
        self.chain = chain

    @property
    def is_passing(self) -> bool:
        """Whether the moment is to blame and nothing in the transaction: the same may be taken when it is repeated."""
        return self.errno in _PASSING

    @classmethod
    def by_kernel(cls, errno: int, *, map: str = "", key: bytes = b"", chain: str = "") -> "RulesRefused":  # noqa: A002
        element = f"element {key.hex()} of {map}" if key else f"elements of {map}"
        where = f"chain {chain}" if chain else element if map else "the transaction"
        code = codes.errorcode.get(errno, str(errno))
        reason = f"{where}: {code}: {_MEANINGS.get(errno, 'see errno(3)')}; nothing was changed"
        return cls(reason, errno=errno, map=map, key=key, chain=chain)


class LockHeld(NftFailed):
    """Another program held the lock of iptables for longer than we may wait."""


class ExtensionMissing(RulesRefused):
    """A match or target of iptables that the program or the kernel does not have. `line` is the rule that wanted it."""

    def __init__(self, reason: str, *, line: str = "") -> None:
        super().__init__(reason)
        self.line = line


class NotPermitted(NftFailed):
    """No right to change tables here, or a table that belongs to another process."""


class NftMissing(NftFailed):
    """There is no nft binary, or no nf_tables in the kernel."""


class RivalFound(NftFailed):
    """Another program does the same work here."""


class TooOld(NftFailed):
    """The nft binary or the kernel is older than what the table needs."""


class Interrupted(NftFailed):
    """Others change tables so often that no consistent reading came about."""


class OutcomeUnknown(NftFailed):
    """No answer in time, or a lost one. The change may have happened: read the table again."""


_PASSING = frozenset({codes.ENOMEM, codes.EAGAIN, codes.EBUSY, codes.ENOBUFS, codes.EINTR})

_MEANINGS = {
    codes.EEXIST: "it exists with another value, or overlaps an existing range",
    codes.ENOENT: "it, or what it refers to, does not exist",
    codes.EBUSY: "it is still in use",
    codes.EINVAL: "malformed",
    codes.ENFILE: "the map is full",
    codes.ENOMEM: "the kernel has no memory for it",
    codes.ENOBUFS: "the kernel has no buffer for it",
    codes.EAGAIN: "the kernel wants it again",
    codes.EINTR: "it was interrupted",
    codes.ENOSPC: "the kernel has no room for it",
}
