# SPDX-License-Identifier: Apache-2.0
"""`kepd node-init`, `cleanup` and `takeover`: what is done to a node once, beside the daemon.

Each works without a running daemon; what a running one would undo at once is refused.
Never: touches what is not ours or, for a takeover, kube-proxy's.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.config.commands import checked, configuration_flags
from agent.config.packages import is_installed
from agent.model.exit_codes import BAD_CONFIGURATION, CONFLICT, FAILURE

if TYPE_CHECKING:
    from agent.config.document import Configuration, NodeSection

Files = tuple[Path | None, tuple[str, ...], str | None]


def _configuration(file: Path | None, settings: tuple[str, ...], planes: str | None) -> "Configuration":
    found = checked(file, settings, planes).configuration
    if found is None:
        sys.exit(BAD_CONFIGURATION)
    return found


def _run(work: Callable[[], Coroutine[None, None, int]]) -> None:
    import structlog

    from agent.kit.plane_lock import PlaneTaken
    from agent.model.services.nft_error import NftFailed

    warning = 30
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(warning),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        sys.exit(asyncio.run(work()))
    except PlaneTaken as error:
        click.echo(f"kepd: {error}", err=True)
        sys.exit(CONFLICT)
    except (NftFailed, OSError) as error:
        click.echo(f"kepd: {error}", err=True)
        sys.exit(FAILURE)


@click.command("node-init")
@configuration_flags
def node_init(file: Path | None, settings: tuple[str, ...], planes: str | None) -> None:
    """Set what an unprivileged container cannot: limits and timeouts of connection tracking, and node ports on
    loopback addresses, if the configuration asks for them."""
    configuration = _configuration(file, settings, planes)

    async def work() -> int:
        from agent.drivers.conntrack.driver import Conntrack
        from agent.drivers.iptables.driver import IptablesTables

        conntrack = Conntrack()
        await conntrack.apply_limits(configuration.services.conntrack)
        await conntrack.close()
        services = configuration.services
        if services.backend == "iptables" and not services.node_port_addresses:
            await IptablesTables("IPv4").allow_loopback()
        click.echo("this node is set up for Services")
        return 0

    _run(work)


@click.command()
@configuration_flags
@click.option("--services", "is_services", is_flag=True, help="Remove rules for Services.")
@click.option("--images", "is_images", is_flag=True, help="Remove content and leases of prefetches.")
@click.option("--dns", "is_dns", is_flag=True, help="Remove rules and addresses for names.")
@click.option("--policies", "is_policies", is_flag=True, help="Remove rules for NetworkPolicies.")
@click.option("--all", "is_all", is_flag=True, help="Remove all of these.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option(
    "--to-kube-proxy",
    is_flag=True,
    help="Leave the iptables chains to a kube-proxy, which uses the same names; remove only kepd's mark. "
    "This is the default where a kube-proxy runs.",
)
def cleanup(
    *,
    file: Path | None,
    settings: tuple[str, ...],
    planes: str | None,
    is_services: bool,
    is_images: bool,
    is_dns: bool,
    is_policies: bool,
    is_all: bool,
    dry_run: bool,
    to_kube_proxy: bool,
) -> None:
    """Remove what kepd left in the kernel and the runtime: its tables and chains, its content and leases,
    and nothing else. Refused while a kepd with that plane runs."""
    if not (is_services or is_images or is_dns or is_policies or is_all):
        raise click.UsageError("expected --services, --images, --dns, --policies or --all")
    configuration = _configuration(file, settings, planes)

    async def services() -> None:
        await cleanup_services(
            configuration.node, lambda text: _say(text, is_dry=dry_run), is_dry=dry_run, has_heir=to_kube_proxy
        )
        await _lift_taint(configuration, is_dry=dry_run)

    async def policies() -> None:
        await cleanup_policies(configuration, lambda text: _say(text, is_dry=dry_run), is_dry=dry_run)

    steps = {
        "names": (is_dns, lambda: _cleanup_names(configuration, is_dry=dry_run)),
        "Services": (is_services, services),
        "policies": (is_policies, policies),
        "images": (is_images, lambda: _cleanup_images(configuration, is_dry=dry_run)),
    }
    _run(lambda: _each({what: step for what, (is_asked, step) in steps.items() if is_asked or is_all}))


async def _each(steps: Mapping[str, Callable[[], Coroutine[None, None, None]]]) -> int:
    """One that fails keeps none of the others from being done."""
    from agent.model.services.nft_error import NftFailed

    failed = 0
    for what, step in steps.items():
        try:
            await step()
        except (NftFailed, OSError) as error:
            click.echo(f"kepd: what there is of {what} was not removed, or not all of it: {error}", err=True)
            failed = FAILURE
    return failed


async def _cleanup_images(configuration: "Configuration", *, is_dry: bool) -> None:
    from agent.images.attach.uninstall import clean_images

    for text in await clean_images(configuration, is_dry=is_dry):
        _say(text, is_dry=is_dry)


def _say(text: str, *, is_dry: bool) -> None:
    click.echo(f"{'would remove' if is_dry else 'removed'} {text}")


async def cleanup_services(node: "NodeSection", say: Callable[[str], None], *, is_dry: bool, has_heir: bool) -> None:
    """Rules of Services, whoever left them; `say` hears of each."""
    from agent.drivers.interfaces.families import host_families
    from agent.drivers.nft.driver import NftTable
    from agent.kit.plane_lock import held_plane_lock
    from agent.services.attach.settings import services_scope
    from agent.services.run.kernel.boot_guard import GUARD_FILE
    from agent.services.run.kernel.leftovers import our_leftovers
    from agent.services.run.kernel.takeover import running_kube_proxies

    with held_plane_lock("services", services_scope(), node.run_directory):
        guard = Path(node.state_directory) / GUARD_FILE
        if guard.exists():
            say(f"{guard}; disable kepd-guard.service too, which loads it at a boot")
            if not is_dry:
                guard.unlink()
        for family in host_families():
            table = NftTable(family)
            for one in await our_leftovers(family, table, has_heir=has_heir or bool(running_kube_proxies())):
                if not is_dry:
                    await one.remove()
                say(one.text)
            await table.close()


async def _cleanup_names(configuration: "Configuration", *, is_dry: bool) -> None:
    if not is_installed("dns"):
        return
    from agent.kit.plane_lock import held_plane_lock
    from agent.services.attach.settings import services_scope
    from kepd_dns.attach.cleanup import remove_names

    # The plane for names runs where Services do.
    with held_plane_lock("services", services_scope(), configuration.node.run_directory):
        for text in await remove_names(configuration, is_dry=is_dry):
            _say(text, is_dry=is_dry)


async def cleanup_policies(configuration: "Configuration", say: Callable[[str], None], *, is_dry: bool) -> None:
    from agent.policies.attach.unit import remove_policies

    for text in await remove_policies(configuration, is_dry=is_dry):
        say(text)


async def _lift_taint(configuration: "Configuration", *, is_dry: bool) -> None:
    """Take the taint off where kepd was to do that, for nothing else would.

    A server that refuses or is away does not stop the cleanup."""
    services, kubernetes, node = configuration.services, configuration.kubernetes, configuration.node.name
    if services.source != "kubernetes" or not (services.startup_taint or services.taint_when_down != "never"):
        return
    from agent.drivers.clock.driver import SystemClock
    from agent.drivers.kube.client import KubeClient
    from agent.drivers.kube.errors import KubeError
    from agent.drivers.kube.kubeconfig import find_access
    from agent.services.run.cluster.startup_taint import STARTUP_TAINT, lift_taint

    try:
        access = find_access(kubernetes.kubeconfig, kubernetes.servers, os.environ)
        if access is None:
            return
        client = KubeClient(access, clock=SystemClock())
        try:
            if await lift_taint(client, node, is_dry=is_dry):
                _say(f"the taint {STARTUP_TAINT} of node {node}", is_dry=is_dry)
        finally:
            await client.close()
    except (KubeError, OSError) as error:
        by_hand = f"kubectl taint nodes {node} {STARTUP_TAINT}-"
        click.echo(f"kepd: the node may still have its taint: {error}; by hand: {by_hand}", err=True)


@click.command()
@click.argument("program", type=click.Choice(["kube-proxy"]))
@configuration_flags
@click.option("--check", "is_check", is_flag=True, help="Show what is there, and what --apply would do.")
@click.option(
    "--apply", "is_apply", is_flag=True, help="Let kepd program Services, then remove the other program's rules."
)
def takeover(
    *, program: str, file: Path | None, settings: tuple[str, ...], planes: str | None, is_check: bool, is_apply: bool
) -> None:
    """Replace a kube-proxy that has ended and left its rules. kepd adds its rules first, so no connection fails."""
    if is_check == is_apply:
        raise click.UsageError("expected either --check or --apply")
    configuration = _configuration(file, settings, planes)

    async def work() -> int:
        from agent.drivers.interfaces.families import host_families
        from agent.drivers.nft.driver import NftTable
        from agent.services.run.kernel.leftovers import kube_proxys_leftovers
        from agent.services.run.kernel.takeover import Takeover, running_kube_proxies

        found = []
        for family in host_families():
            table = NftTable(family)
            found += [one.text for one in await kube_proxys_leftovers(family, table)]
            await table.close()
        running = running_kube_proxies()
        for text in found:
            click.echo(f"{program} has {text}")
        if running:
            pids = ", ".join(map(str, running))
            click.echo(f"{program} runs (process {pids}): delete its DaemonSet or stop its unit first", err=True)
            return CONFLICT
        if not found:
            click.echo(f"{program} left nothing here; kepd programs Services at its next start")
        elif is_check:
            click.echo("kepd takeover kube-proxy --apply: kepd adds its rules first, then removes these")
        else:
            Takeover(Path(configuration.node.state_directory)).ask()
            click.echo(
                "requested: a kepd that is waiting for kube-proxy to end starts within 30 s, any other at its next "
                "start; it removes these after its first sync (`kepctl get planes` shows the state)"
            )
        return 0

    _run(work)


upkeep_commands = (node_init, cleanup, takeover)
