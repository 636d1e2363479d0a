# SPDX-License-Identifier: Apache-2.0
"""Credential provider plugins, as real child processes."""

import json
import os
import stat
import sys
import textwrap
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.images.access.dockerconfig import entries_for
from agent.images.access.provider_config import Provider, read_providers
from agent.images.access.provider_wire import AnswerInvalid, CacheKeyType, ProviderCache, decode_answer, encode_request
from agent.images.run.credentials import Providers, provider_documents
from agent.images.run.plugin_process import MAX_OUTPUT_BYTES, PluginFailed, run_plugin
from tests.fakes.clock import FakeClock

V1 = "credentialprovider.kubelet.k8s.io/v1"
SECRET = "s3cret-of-the-provider"


def provider(name="plugin", patterns=("*.example.com",), cache_s=600.0, **more) -> Provider:
    return Provider(name=name, patterns=patterns, default_cache_s=cache_s, api_version=V1, **more)


def plugin(folder: Path, body: str, name="plugin") -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(body)}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


ANSWERS = f"""
    import json, os, sys
    request = json.load(sys.stdin)
    with open(os.path.join(os.path.dirname(__file__), "calls"), "a") as calls:
        calls.write(json.dumps({{"request": request, "args": sys.argv[1:], "env": dict(os.environ)}}) + "\\n")
    registry = request["image"].partition("/")[0]
    print(json.dumps({{
        "apiVersion": "{V1}", "kind": "CredentialProviderResponse", "cacheKeyType": "Registry", "cacheDuration": "10m",
        "auth": {{registry: {{"username": "plugin-user", "password": "{SECRET}"}}}},
    }}))
"""


def calls(folder: Path) -> list[dict]:
    path = folder / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def providers(folder, *given, clock=None, environment=None) -> Providers:
    return Providers(given, folder, environment or {"PATH": os.environ["PATH"]}, clock=clock or FakeClock())


async def test_a_plugin_is_asked_by_the_protocol_and_its_answer_used(tmp_path) -> None:
    """IMG-C20, C21: request on stdin, arguments, own environment on top of the little it gets of ours."""
    plugin(tmp_path, ANSWERS)
    environment = {"PATH": os.environ["PATH"], "KEPD_SECRET_THING": "x", "HOME": "/root"}
    given = provider(args=("--region", "eu"), env=(("AWS_PROFILE", "p"),))
    found = await providers(tmp_path, given, environment=environment).find("a.example.com/team/app")
    credentials = [one for entries in found.entries for one in entries_for("a.example.com/team/app", entries)]
    call = calls(tmp_path)[0]

    assert [(one.username, one.password.reveal(), one.source) for one in credentials] == [
        ("plugin-user", SECRET, "provider:plugin")
    ]
    assert call["request"] == {"kind": "CredentialProviderRequest", "apiVersion": V1, "image": "a.example.com/team/app"}
    assert call["args"] == ["--region", "eu"]
    assert call["env"]["AWS_PROFILE"] == "p"
    assert call["env"]["HOME"] == "/root"
    assert "KEPD_SECRET_THING" not in call["env"]


async def test_a_plugin_is_not_called_for_images_of_others(tmp_path) -> None:
    """IMG-C21."""
    plugin(tmp_path, ANSWERS)
    found = await providers(tmp_path, provider()).find("docker.io/library/busybox")

    assert (found.entries, found.failures, calls(tmp_path)) == ((), (), [])


async def test_an_answer_is_kept_for_what_it_says_and_renewed_before_it_ends(tmp_path) -> None:
    """IMG-C22, C25: 80 % of ten minutes."""
    plugin(tmp_path, ANSWERS)
    clock = FakeClock()
    asks = providers(tmp_path, provider(), clock=clock)
    for repo, moment, expected in (
        ("a.example.com/x", 0, 1), ("a.example.com/y", 1, 1), ("b.example.com/x", 1, 2), ("a.example.com/x", 480, 3),
    ):  # fmt: skip
        await clock.advance(moment - clock.now_s())
        await asks.find(repo)
        assert len(calls(tmp_path)) == expected, (repo, moment)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("import sys; sys.exit(3)", "ended with exit code 3"),
        ("import sys; sys.exit('token=abcdefgh was refused')", "ended with exit code 1: token=*** was refused"),
        ("print('not json')", "did not print a CredentialProviderResponse"),
        ('print(\'{"kind": "X"}\')', f"did not answer with a CredentialProviderResponse of {V1}"),
        (f"print('x' * {MAX_OUTPUT_BYTES + 1})", f"printed more than {MAX_OUTPUT_BYTES} bytes"),
    ],
)
async def test_a_plugin_that_fails_is_told_without_what_it_printed(tmp_path, body, complaint) -> None:
    """IMG-C21, C24."""
    plugin(tmp_path, body)
    with capture_logs() as logs:
        found = await providers(tmp_path, provider()).find("a.example.com/x")

    assert found.failures == (("plugin", complaint),)
    assert logs[0]["event"] == "credential_provider_failed"
    assert "abcdefgh" not in str(logs)


async def test_a_plugin_that_is_not_there_is_told(tmp_path) -> None:
    found = await providers(tmp_path, provider()).find("a.example.com/x")

    assert found.failures == (("plugin", "cannot be started: No such file or directory"),)


async def test_a_failing_plugin_is_left_alone_for_a_while_and_its_last_answer_used(tmp_path) -> None:
    """IMG-C24."""
    plugin(tmp_path, ANSWERS)
    clock = FakeClock()
    asks = providers(tmp_path, provider(), clock=clock)
    await asks.find("a.example.com/x")
    plugin(tmp_path, ANSWERS.replace("print(", "sys.exit(7)\n    print("))
    await clock.advance(490)
    kept = await asks.find("a.example.com/x")
    again = await asks.find("a.example.com/x")

    assert len(kept.entries) == len(again.entries) == 1
    assert len(calls(tmp_path)) == 2
    await clock.advance(200)
    assert (await asks.find("a.example.com/x")).failures


async def test_a_plugin_that_hangs_is_ended_with_all_it_started(tmp_path) -> None:
    """IMG-C21: no process is left behind."""
    pid_file, path = tmp_path / "pid", tmp_path / "plugin"
    path.write_text(f"#!/bin/sh\nsleep 60 &\necho $$ $! > {pid_file}\nwait\n")
    path.chmod(0o755)
    began_s = time.monotonic()
    with pytest.raises(PluginFailed, match=r"did not finish within 0\.2s and was killed"):
        await run_plugin([str(path)], b"{}", {"PATH": os.environ["PATH"]}, 0.2)
    pids = [int(pid) for pid in pid_file.read_text().split()]

    assert time.monotonic() - began_s < 5
    assert not [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().split()[2] != "Z"


def answer(**changes) -> bytes:
    document = {"apiVersion": V1, "kind": "CredentialProviderResponse", "cacheKeyType": "Image", **changes}
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"cacheKeyType": "Pod"}, "gave a cacheKeyType that is neither Image nor Registry nor Global"),
        ({"cacheDuration": "soon"}, "gave a cacheDuration that is not a duration"),
        ({"cacheDuration": "-5s"}, "gave a negative cacheDuration"),
        ({"apiVersion": "v2"}, f"did not answer with a CredentialProviderResponse of {V1}"),
    ],
)
def test_an_unusable_answer_is_refused(changes, complaint) -> None:
    """IMG-C21."""
    with pytest.raises(AnswerInvalid) as refused:
        decode_answer(provider(), answer(**changes))

    assert str(refused.value) == complaint


def test_durations_are_read_as_go_writes_them() -> None:
    durations = ["0", "0s", "1h30m0s", "1.5s", "300ms", None]

    assert [decode_answer(provider(), answer(cacheDuration=one)).cache_s for one in durations] == [
        0,
        0,
        5400,
        1.5,
        0.3,
        None,
    ]


def test_a_request_carries_only_what_was_configured() -> None:
    assert json.loads(encode_request(provider(), "a.io/x")) == {
        "kind": "CredentialProviderRequest", "apiVersion": V1, "image": "a.io/x",
    }  # fmt: skip


def test_the_cache_is_asked_for_the_image_then_its_registry_then_all() -> None:
    """IMG-C22."""
    cache = ProviderCache(provider())
    for key_type in ("Global", "Registry", "Image"):
        given = decode_answer(provider(), answer(cacheKeyType=key_type, cacheDuration="10m"))
        cache.keep("a.example.com/x", given, 0)

    assert CacheKeyType("Image") is CacheKeyType.IMAGE
    assert cache.find("a.example.com/x", 1) is not None
    assert cache.find("other.example.com/x", 1) is not None
    assert cache.find("a.example.com/x", 600) is None

    cache.keep("b.example.com/x", decode_answer(provider(), answer(cacheDuration="0s")), 1000)

    assert len(cache) == 0


CONFIG = """
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: ecr-credential-provider
  matchImages: ["*.dkr.ecr.*.amazonaws.com"]
  defaultCacheDuration: 12h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: [get-credentials]
  env: [{name: AWS_PROFILE, value: x}]
"""


def test_documents_are_merged_in_order_and_json_is_yaml() -> None:
    """IMG-C20."""
    second = json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
            "providers": [{"name": "gcr", "matchImages": ["gcr.io"], "defaultCacheDuration": "0s", "apiVersion": V1}],
        }
    )  # fmt: skip
    found, findings = read_providers([("a.yaml", CONFIG.encode()), ("b.json", second.encode())])

    assert findings == ()
    assert [one.name for one in found] == ["ecr-credential-provider", "gcr"]
    assert found[0].default_cache_s == 43200
    assert found[0].env == (("AWS_PROFILE", "x"),)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("name: ../x", "is not the name of a file in the plugin directory"),
        ("matchImages: []", "needs at least one pattern"),
        ('matchImages: ["[a"]', "has an opening bracket"),
        ("defaultCacheDuration: 5", "is not a duration"),
        ("apiVersion: v9", "is none of credentialprovider.kubelet.k8s.io/v1"),
        ("matchImage: [x]", 'unknown key; did you mean "matchImages"?'),
        ("env: {a: b}", "is not a list of name and value"),
        ("tokenAttributes: {cacheType: Token}", "kepd gets no tokens of service accounts; this provider is left out"),
    ],
)
def test_every_complaint_names_its_place(change, complaint) -> None:
    """IMG-C20."""
    key = change.partition(":")[0]
    lines = CONFIG.splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith((f"  {key}:", f"- {key}:"))]
    if places:
        lines[places[0]] = lines[places[0]][:2] + change
    else:
        lines.append(f"  {change}")
    text = "\n".join(lines)
    _, findings = read_providers([("a.yaml", text.encode())])

    assert any(complaint in str(finding) for finding in findings), [str(one) for one in findings]
    assert all(str(finding).startswith("a.yaml") for finding in findings)


def test_a_provider_that_wants_tokens_is_left_out_and_the_others_stay() -> None:
    """FI-10, IMG-C23: without its token it would answer for nobody, or for the wrong one."""
    entry = CONFIG[CONFIG.index("- name:") :].replace("ecr-credential-provider", "workload")
    text = f"{CONFIG}{entry}  tokenAttributes: {{serviceAccountTokenAudience: a, cacheType: Token}}\n"
    found, findings = read_providers([("a.yaml", text.encode())])

    assert [one.name for one in found] == ["ecr-credential-provider"]
    assert [finding.path for finding in findings] == ["providers[1].tokenAttributes"]


def test_of_a_folder_only_configuration_files_are_read_in_byte_order(tmp_path) -> None:
    """IMG-C20."""
    for name in ("b.yml", "a.yaml", "B.json", "notes.txt"):
        (tmp_path / name).write_text(name)

    assert [content for _, content in provider_documents(tmp_path)] == [b"B.json", b"a.yaml", b"b.yml"]
    assert provider_documents(tmp_path / "notes.txt")[0][1] == b"notes.txt"


def test_a_provider_that_is_there_twice_and_a_text_that_is_no_yaml_are_told() -> None:
    """IMG-C20."""
    _, twice = read_providers([("a.yaml", CONFIG.encode()), ("b.yaml", CONFIG.encode())])
    _, broken = read_providers([("a.yaml", b"a: [")])

    assert [str(one) for one in twice] == ["providers.ecr-credential-provider: is given more than once"]
    assert str(broken[0]).endswith("is neither JSON nor YAML")
