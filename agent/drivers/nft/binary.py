# SPDX-License-Identifier: Apache-2.0
"""The nft program: text in, error out, with a deadline, and the versions that the table needs.

Source of behaviour: docs/support.md (nft 1.0.1, kernel 5.13).
"""

import asyncio
import re
from collections.abc import Callable, Sequence

from agent.model.services.nft_error import NftFailed, NftMissing, NotPermitted, OutcomeUnknown, RulesRefused, TooOld

_LEAST_NFT = (1, 0, 1)
_LEAST_KERNEL = (5, 13)
_MOST_ERROR_CHARACTERS = 400
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


async def run_text(command: Sequence[str], text: str, deadline_s: float, on_start: Callable[[int], None]) -> None:
    """Run a text as one transaction. `on_start` hears the process id before anything is changed."""
    code, _, errors = await _run((*command, "-f", "-"), text, deadline_s, on_start)
    if code:
        raise _failure(command, errors)


async def require_nft(command: Sequence[str], deadline_s: float) -> None:
    """Raises NftMissing or TooOld."""
    code, output, errors = await _run((*command, "--version"), "", deadline_s, lambda _: None)
    found = _VERSION.search(output)
    if code or found is None:
        raise NftFailed(f"{command[0]} --version ended with code {code}: {_short(errors or output)}")
    version = tuple(int(part or 0) for part in found.groups())
    if version < _LEAST_NFT:
        least = ".".join(map(str, _LEAST_NFT))
        raise TooOld(f"{command[0]} is version {found[0]}; the table needs {least} or newer: install a newer nftables")


def require_kernel(release: str) -> None:
    """Raises TooOld."""
    found = _VERSION.match(release)
    if found and (int(found[1]), int(found[2])) < _LEAST_KERNEL:
        least = ".".join(map(str, _LEAST_KERNEL))
        raise TooOld(f"the kernel is {release}; the table needs {least} or newer, or services.backend: iptables")


async def _run(
    command: Sequence[str], text: str, deadline_s: float, on_start: Callable[[int], None]
) -> tuple[int, str, str]:
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    except FileNotFoundError as error:
        raise NftMissing(f"there is no program {command[0]!r}: install the package nftables") from error
    except PermissionError as error:
        raise NotPermitted(f"{command[0]} cannot be run: {error.strerror}") from error
    except OSError as error:
        raise NftFailed(f"{command[0]} cannot be started: {error.strerror}; kepd tries again") from error
    # nft reads its input to the end before it acts, so whoever watches knows the process by then.
    on_start(child.pid)
    try:
        async with asyncio.timeout(deadline_s):
            output, errors = await child.communicate(text.encode())
    except TimeoutError as error:
        raise OutcomeUnknown(
            f"nft gave no answer within {deadline_s:g} s and was killed; kepd reads the table again"
        ) from error
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace")


def _failure(command: Sequence[str], errors: str) -> NftFailed:
    if "Operation not permitted" in errors:
        return NotPermitted(f"{command[0]} may not change tables: {_short(errors)}; kepd needs CAP_NET_ADMIN")
    if "Protocol not supported" in errors or "cache initialization failed: Invalid argument" in errors:
        return NftMissing(f"the kernel has no nf_tables: {_short(errors)}")
    return RulesRefused(f"nft refused the table's text: {_short(errors)}; nothing was changed")


def _short(errors: str) -> str:
    return " ".join(errors.split())[:_MOST_ERROR_CHARACTERS] or "no message"
