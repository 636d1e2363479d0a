# SPDX-License-Identifier: Apache-2.0
"""`kepd backup` and `kepd restore`: a node in one file, and a node from one; also another machine's."""

import os
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent import __version__
from agent.config.commands import checked, configuration_flags
from agent.model.exit_codes import CONFLICT, FAILURE
from agent.model.finding import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.config.document import Configuration
    from agent.host.backup.archive import Member


def _fail(error: object, code: int = FAILURE) -> None:
    click.echo(f"kepd: {printable(str(error))}", err=True)
    sys.exit(code)


def _configuration(file: Path | None, settings: tuple[str, ...], planes: str | None) -> "Configuration":
    found = checked(file, settings, planes).configuration
    assert found is not None, "without one the program has ended"  # noqa: S101
    return found


def _roots(folder: Path, configuration: "Configuration") -> dict[str, Path]:
    state = Path(configuration.node.state_directory)
    places = {
        "config": folder,
        "manifests": Path(configuration.manifests.directory),
        "state": state,
        "pods": Path(configuration.pods.directory or state / "pods"),
    }
    # What lies in another root is of that one.
    return {name: place.absolute() for name, place in places.items()}


@click.command()
@configuration_flags
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write [kepd-NODE-TIME.tar.gz].")
@click.option("--recipient", "recipients", multiple=True, help="Encrypt for this recipient of age; may be repeated.")
@click.option("--without-secrets", is_flag=True, help="Leave out files that hold secrets, and name them.")
def backup(
    file: Path | None,
    settings: tuple[str, ...],
    planes: str | None,
    *,
    output: Path | None,
    recipients: tuple[str, ...],
    without_secrets: bool,
) -> None:
    """Write configuration, manifests and state to one file; kepd may run meanwhile. Data of pods are no part of it.
    What kepd remembers of manifests (objects.db) is in an encrypted one alone.

    What holds secrets is written only encrypted (--recipient), or left out (--without-secrets)."""
    from agent.config.sources import DEFAULT_FILE
    from agent.host.backup.archive import BackupFailed, found_below, remembered, write_archive
    from agent.host.backup.contents import FORMAT, About, secret_in

    configuration = _configuration(file, settings, planes)
    now = datetime.now(UTC)
    suffix = ".tar.gz.age" if recipients else ".tar.gz"
    target = output or Path(f"kepd-{configuration.node.name}-{now:%Y%m%d-%H%M%S}{suffix}")
    try:
        members = list(found_below(_roots((file or DEFAULT_FILE).absolute().parent, configuration)))
        members += remembered(Path(configuration.node.state_directory)) if recipients else ()
        secret = {} if recipients else {
            f"{one.root}/{one.path}": what for one in members if (what := secret_in(one.root, one.path, one.content))
        }  # fmt: skip
        if secret and not without_secrets:
            name, what = next(iter(secret.items()))
            more = f", as {len(secret) - 1} more files do" if len(secret) > 1 else ""
            _fail(f"{name} holds {what}{more}; encrypt with --recipient, or leave them out with --without-secrets")
        kept = [one for one in members if f"{one.root}/{one.path}" not in secret]
        about = About(
            format=FORMAT,
            version=__version__,
            node=configuration.node.name,
            written=now.isoformat(timespec="seconds"),
            left_out=tuple(secret),
        )
        write_archive(target, about, kept, recipients)
    except (BackupFailed, OSError) as error:
        _fail(error)
    for name, what in secret.items():
        click.echo(f"left out {printable(name)}: {what}")
    click.echo(f"wrote {printable(str(target))}: {len(kept)} files{', encrypted' if recipients else ''}")


@click.command()
@click.argument("archive", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@configuration_flags
@click.option("--identity", type=click.Path(path_type=Path, exists=True), help="Key of age that decrypts.")
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
@click.option("--replace", is_flag=True, help="Also write files that are there with other content.")
def restore(
    archive: Path,
    file: Path | None,
    settings: tuple[str, ...],
    planes: str | None,
    *,
    identity: Path | None,
    dry_run: bool,
    replace: bool,
) -> None:
    """Write back what `kepd backup` wrote, while no kepd runs. Files that the archive lacks stay."""
    from agent.config.sources import DEFAULT_FILE
    from agent.host.backup.archive import BackupFailed, read_archive
    from agent.kit.plane_lock import PlaneTaken, held_plane_lock

    folder = (file or DEFAULT_FILE).absolute().parent
    try:
        about, members = read_archive(archive, identity)
        there = file if file is not None and file.exists() else None
        configuration = _configuration(there, settings, planes)
        with ExitStack() as held:
            for plane in ("pods", "images"):
                held.enter_context(
                    held_plane_lock(plane, configuration.runtime.endpoint, configuration.node.run_directory)
                )
            first = [one for one in members if one.root == "config"]
            _write(first, {"config": folder}, is_dry=dry_run, replaces=replace)
            # It says where the others go, where it is not only shown.
            configuration = _configuration(there if dry_run else file, settings, planes)
            rest = [one for one in members if one.root != "config"]
            _write(rest, _roots(folder, configuration), is_dry=dry_run, replaces=replace)
    except PlaneTaken as error:
        _fail(f"{error}; stop kepd.socket and kepd first", CONFLICT)
    except (BackupFailed, OSError) as error:
        _fail(error)
    for name in about.left_out:
        click.echo(f"{printable(name)} is not in the archive: it held a secret")
    if about.node != configuration.node.name:
        theirs = printable(about.node)
        click.echo(f"the archive is of node {theirs}, this one is {configuration.node.name}")
        click.echo(f"pods get new names, unless node.name says {theirs}")


def _write(members: "Sequence[Member]", roots: dict[str, Path], *, is_dry: bool, replaces: bool) -> None:
    """All of them or, where one is in the way, none. Each belongs to whom its directory belongs."""
    from agent.drivers.atomic_files import write_file
    from agent.host.backup.archive import BackupFailed

    wanted = list(_differing(members, roots))
    taken = [path for path, _ in wanted if path.exists()]
    if taken and not (replaces or is_dry):
        kept = ", ".join(sorted({str(roots[one.root]) for _, one in wanted}))
        raise BackupFailed(f"{taken[0]} is there with other content; --replace writes over it. Unchanged: {kept}")
    for path, one in wanted:
        if not is_dry:
            _make_folder(path.parent)
            for journal in (f"{path}-wal", f"{path}-shm") if path.suffix == ".db" else ():
                # It would be played back into another database than its own.
                Path(journal).unlink(missing_ok=True)
            write_file(path, one.content, mode=one.mode)
            _give(path)
        click.echo(f"{'would write' if is_dry else 'wrote'} {printable(str(path))}")


def _make_folder(folder: Path) -> None:
    """As the one above it is."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir()
    folder.chmod(folder.parent.stat().st_mode & 0o777)
    _give(folder)


def _give(path: Path) -> None:
    above = path.parent.stat()
    os.chown(path, above.st_uid, above.st_gid)


def _differing(members: "Sequence[Member]", roots: dict[str, Path]) -> "Iterator[tuple[Path, Member]]":
    for one in members:
        path = roots[one.root] / one.path
        if not path.is_file() or path.read_bytes() != one.content:
            yield path, one
