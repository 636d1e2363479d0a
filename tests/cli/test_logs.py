# SPDX-License-Identifier: Apache-2.0
"""CL-12: `kepctl logs` of one container and of many, back in time, and over restarts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.cli.session import CommandFailed
from tests.cli.pod_node import PodNode, pod_node
from tests.pods.plane import Slow, manifest

WEB = manifest("web", "i", "i", more=", labels: {app: web}")
TWO = {"/m/a.yaml": WEB, "/m/b.yaml": manifest("db", "i", more=", labels: {app: db}")}


@asynccontextmanager
async def two_pods(tmp_path: Path, short_path: Path) -> AsyncIterator[PodNode]:
    async with pod_node(tmp_path, short_path, TWO) as node:
        await node.plane.until_phases(web="Running", db="Running")
        node.write_log("a", "one", "two", "three")
        node.write_log("b", "second")
        node.write_log("a", "of db", pod="db-n")
        yield node


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("logs web", "one\ntwo\nthree\n"),
        ("logs web/b", "second\n"),
        ("logs web -c b", "second\n"),
        ("logs web --tail 2", "two\nthree\n"),
        ("logs web --tail=-1", "one\ntwo\nthree\n"),
        ("logs web --timestamps --tail 1", "2026-01-01T00:00:02.000000000Z three\n"),
        ("logs web --since-time 2026-01-01T00:00:01Z", "two\nthree\n"),
        ("logs web --since 1s", ""),
        ("logs web --tail 0", ""),
        ("logs web --tail 0 --since-time 2026-01-01T00:00:01Z", ""),
        ("logs -l app --tail 0", ""),
        ("logs web db", "one\ntwo\nthree\nof db\n"),
        ("logs -l app=db --prefix", "[pod/db-n] of db\n"),
        ("logs -l 'app in (web,db)' --tail 1 --prefix", "[pod/db-n] of db\n[pod/web-n] three\n"),
        ("logs web --all-containers --prefix --tail 1", "[pod/web-n/a] three\n[pod/web-n/b] second\n"),
    ],
)
async def test_lines_of_one_or_many(tmp_path: Path, short_path: Path, words: str, output: str) -> None:
    async with two_pods(tmp_path, short_path) as node:
        done = await node.ctl(words)

    assert (done.exit_code, done.output) == (0, output), done.exception


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        ("logs", "expected either PODs or -l LABELS", 2),
        ("logs web -l a=b", "expected either PODs or -l LABELS", 2),
        ("logs -l app=none", "no pod has the labels app=none", 3),
        ("logs -l 'app=='", "", 3),
        ("logs web -c none", 'has no container "none"; it has a, b', 3),
        ("logs web --since 5m --since-time 2026-01-01T00:00:00Z", "exclude each other", 2),
        ("logs web --since-time yesterday", "expected a time with its zone", 2),
        ("logs web -p", "a has no previous instance", 3),
    ],
)
async def test_what_is_wrong_is_said(tmp_path: Path, short_path: Path, words: str, text: str, code: int) -> None:
    async with two_pods(tmp_path, short_path) as node:
        done = await node.ctl(words)

    assert isinstance(done.exception, CommandFailed)
    assert done.exception.exit_code == code
    assert text in str(done.exception)


async def test_who_follows_hears_of_the_next_instance_too_until_the_pod_is_gone(
    tmp_path: Path, short_path: Path
) -> None:
    cri = Slow()
    async with pod_node(tmp_path, short_path, {"/m/a.yaml": manifest("web", "i")}, cri) as node:
        await node.plane.until_phases(web="Running")
        node.write_log("a", "first")
        following = asyncio.create_task(node.ctl("logs web -f"))
        await node.plane.until(lambda: node.reads_log("a"), "the first is read")
        cri.exit(node.container_id("a"), 1)
        await node.plane.until(lambda: node.plane.pod().containers[0].restart_count == 1, "it is restarted")
        node.write_log("a", "second", attempt=1)
        await node.plane.until(lambda: node.reads_log("a", 1), "the second is read")
        node.plane.manifests.put("/m/a.yaml", None)
        await node.plane.until(lambda: not node.plane.phases, "it is gone")
        done = await following

    assert done.output == "first\nsecond\n"


async def test_who_follows_no_line_from_the_end_sees_only_what_is_new(tmp_path: Path, short_path: Path) -> None:
    cri = Slow()
    async with pod_node(tmp_path, short_path, {"/m/a.yaml": manifest("web", "i")}, cri) as node:
        await node.plane.until_phases(web="Running")
        node.write_log("a", "of the past")
        following = asyncio.create_task(node.ctl("logs web -f --tail 0"))
        await node.plane.until(lambda: node.reads_log("a"), "it is read")
        node.plane.manifests.put("/m/a.yaml", None)
        await node.plane.until(lambda: not node.plane.phases, "it is gone")
        done = await following

    assert done.output == ""


async def test_the_instance_before_has_its_own_log(tmp_path: Path, short_path: Path) -> None:
    cri = Slow()
    async with pod_node(tmp_path, short_path, {"/m/a.yaml": manifest("web", "i")}, cri) as node:
        await node.plane.until_phases(web="Running")
        node.write_log("a", "first")
        cri.exit(node.container_id("a"), 1)
        await node.plane.until(lambda: node.plane.pod().containers[0].restart_count == 1, "it is restarted")
        node.write_log("a", "second", attempt=1)
        done = await node.ctl("logs web --previous --timestamps")

    assert done.output == "2026-01-01T00:00:00.000000000Z first\n"


async def test_who_follows_waits_for_a_container_that_has_not_begun(tmp_path: Path, short_path: Path) -> None:
    cri = Slow()
    cri.registry.add("slow")
    cri.slow_images.add("slow")
    given = {"/m/a.yaml": manifest("web", "slow").replace(b"spec:\n", b"spec:\n  restartPolicy: Never\n")}
    async with pod_node(tmp_path, short_path, given, cri) as node:
        await node.plane.until(lambda: cri.pulling["slow"], "a pull")
        early = await node.ctl("logs web")
        following = asyncio.create_task(node.ctl("logs web -f"))
        await asyncio.sleep(0)
        cri.may_pull.set()
        await node.plane.until_phases(web="Running")
        node.write_log("a", "at last")
        cri.exit(node.container_id("a"), 0)
        done = await following

    assert "a has not begun yet, so it has no log; follow it" in str(early.exception)
    assert (done.exit_code, done.output) == (0, "at last\n")


async def test_many_are_followed_together(tmp_path: Path, short_path: Path) -> None:
    once = {path: one.replace(b"spec:\n", b"spec:\n  restartPolicy: Never\n") for path, one in TWO.items()}
    cri = Slow()
    async with pod_node(tmp_path, short_path, once, cri) as node:
        await node.plane.until_phases(web="Running", db="Running")
        node.write_log("a", "of web")
        node.write_log("a", "of db", pod="db-n")
        following = asyncio.create_task(node.ctl("logs web/a db/a -f --prefix"))
        for pod in ("web-n", "db-n"):
            cri.exit(node.container_id("a", pod), 0)
        done = await following

    assert sorted(done.output.splitlines()) == ["[pod/db-n/a] of db", "[pod/web-n/a] of web"]
