# SPDX-License-Identifier: Apache-2.0
"""The nft program: missing, too old, stuck, refusing. Each is one line that says what would be right."""

from pathlib import Path

import pytest

from agent.drivers.nft.binary import require_kernel, require_nft, run_text
from agent.model.services.nft_error import NftFailed, NftMissing, NotPermitted, OutcomeUnknown, RulesRefused, TooOld

WITHIN_S = 40.0


def program(folder: Path, script: str) -> tuple[str, str]:
    """An nft of ours."""
    path = folder / "nft"
    path.write_text(script)
    return "sh", str(path)


async def test_a_missing_program_is_told(tmp_path: Path) -> None:
    with pytest.raises(NftMissing, match="install the package nftables"):
        await require_nft((str(tmp_path / "nft"),), WITHIN_S)


@pytest.mark.parametrize("version", ["nftables v0.9.8 (E.D.S.)", "nftables v1.0.0 (Fearless Fosdick #2)"])
async def test_an_old_program_is_told(tmp_path: Path, version: str) -> None:
    with pytest.raises(TooOld, match=r"the table needs 1\.0\.1 or newer"):
        await require_nft(program(tmp_path, f"echo '{version}'"), WITHIN_S)


@pytest.mark.parametrize("version", ["nftables v1.0.1 (x)", "nftables v1.0.6 (Lester Gooch #5)", "nftables v1.1 (x)"])
async def test_newer_programs_will_do(tmp_path: Path, version: str) -> None:
    await require_nft(program(tmp_path, f"echo '{version}'"), WITHIN_S)


async def test_a_program_that_says_no_version_is_no_nft(tmp_path: Path) -> None:
    with pytest.raises(NftFailed, match="ended with code 3: broken"):
        await require_nft(program(tmp_path, "echo broken >&2; exit 3"), WITHIN_S)


@pytest.mark.parametrize("release", ["5.10.0-28-amd64", "4.19.0", "5.12.19"])
def test_an_old_kernel_is_told(release: str) -> None:
    with pytest.raises(TooOld, match=r"the table needs 5\.13 or newer"):
        require_kernel(release)


@pytest.mark.parametrize("release", ["5.13.0", "6.1.0-18-cloud-amd64", "6.18.44-x", "unheard of"])
def test_newer_kernels_will_do(release: str) -> None:
    require_kernel(release)


async def test_the_text_reaches_the_program_after_its_process_id_reached_us(tmp_path: Path) -> None:
    """NF-64: whoever watches knows the process before it changes anything."""
    seen: list[tuple[int, bool]] = []
    out = tmp_path / "out"
    await run_text(
        program(tmp_path, f'cat > {out}; echo "$*" >> {out}'), "some text\n", WITHIN_S,
        lambda pid: seen.append((pid, out.exists() and bool(out.read_text()))),
    )  # fmt: skip

    assert out.read_text() == "some text\n-f -\n"
    assert [written for _, written in seen] == [False]
    assert seen[0][0] > 0


async def test_a_refusal_keeps_the_words_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(RulesRefused, match="Error: syntax error"):
        await run_text(program(tmp_path, "echo 'Error: syntax error' >&2; exit 1"), "", WITHIN_S, lambda _: None)


async def test_a_missing_right_is_told(tmp_path: Path) -> None:
    script = "echo 'Error: Could not process rule: Operation not permitted' >&2; exit 1"
    with pytest.raises(NotPermitted, match="CAP_NET_ADMIN"):
        await run_text(program(tmp_path, script), "", WITHIN_S, lambda _: None)


async def test_a_stuck_program_is_ended(tmp_path: Path) -> None:
    """STY-32."""
    with pytest.raises(OutcomeUnknown, match=r"no answer within 0\.2 s"):
        await run_text(program(tmp_path, "exec sleep 60"), "", 0.2, lambda _: None)
