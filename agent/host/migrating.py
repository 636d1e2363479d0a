# SPDX-License-Identifier: Apache-2.0
"""`kepd config migrate`: writes configuration files of a former version in the form of this one."""

import sys
from pathlib import Path

import click

from agent.model.exit_codes import BAD_CONFIGURATION
from agent.model.finding import printable


@click.command()
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only name the files that would change.")
def migrate(file: Path | None, *, dry_run: bool) -> None:
    """Write FILE and its drop-ins in the form of this version, where they are of a former one; comments stay."""
    from agent.config.migrating import migrated
    from agent.config.sources import DEFAULT_FILE, drop_in_folder
    from agent.config.strict_yaml import UnreadableYaml
    from agent.drivers.atomic_files import write_file

    file = file or DEFAULT_FILE
    paths = [file, *sorted(drop_in_folder(file).glob("*.yaml"))]
    try:
        before = {path: path.read_bytes() for path in paths}
        after = {path: migrated(content, str(path)) for path, content in before.items()}
        changed = [path for path in paths if after[path] != before[path]]
        for path in () if dry_run else changed:
            write_file(path, after[path], mode=path.stat().st_mode & 0o777)
    except (UnreadableYaml, OSError) as error:
        click.echo(printable(str(error)), err=True)
        sys.exit(BAD_CONFIGURATION)
    for path in changed:
        click.echo(f"{'would write' if dry_run else 'wrote'} {printable(str(path))}")
    if not changed:
        click.echo("all files are of this version")
