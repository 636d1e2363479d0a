# SPDX-License-Identifier: Apache-2.0
"""The container image as far as it can be checked without building it, and the list of what it is made of."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from agent import __version__
from tests.host.process import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
LOCK = (ROOT / "scripts/locks/runtime.lock").read_text()


def instructions() -> list[tuple[str, str]]:
    """Without comments, lines put together."""
    text = re.sub(r"(?m)^#.*\n", "", DOCKERFILE).replace("\\\n", " ")
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())
    ]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = [[]]
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found


def test_every_base_can_be_pinned_by_digest_from_outside() -> None:
    """OCI-01: one argument, so that all stages have the same."""
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    before = dict(one.split("=", 1) for word, one in stages()[0] if word == "ARG")

    assert bases == ["${BASE}", "${BASE}", "scratch"]
    assert before["BASE"].startswith("docker.io/library/debian:12")
    assert "--base" in (ROOT / "scripts/image").read_text()


def test_an_image_is_of_the_processor_that_is_named(tmp_path: Path) -> None:
    """OCI-01: built and looked into as such; without a word, of this machine's."""
    docker, said = tmp_path / "docker", tmp_path / "said"
    docker.write_text(f'#!/bin/sh\necho "$@" >>{said}\n')
    docker.chmod(0o755)
    command = [str(ROOT / "scripts/image"), "--sbom", str(tmp_path / "sbom.json")]
    heard = []
    for words in ((), ("--arch", "arm64")):
        said.write_text("")
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run([*command, *words], env={**os.environ, **path}, check=True, capture_output=True, timeout=60)
        heard.append([line for line in said.read_text().splitlines() if line.split()[0] in ("build", "create")])

    assert [["--platform" in line for line in lines] for lines in heard] == [[False, False], [True, True]]
    assert all("--platform linux/arm64" in line for line in heard[1])


def test_nothing_is_fetched_but_packages_and_locked_requirements() -> None:
    """OCI-01, SUP-01."""
    words = {word for word, _ in instructions()}
    text = " ".join(rest for word, rest in instructions() if word == "RUN")
    install = (ROOT / "scripts/install").read_text()

    assert "ADD" not in words
    assert not re.search(r"curl|wget|https?://|\bgit\b|pip3? install", text)
    assert all("--no-install-recommends" in one for one in re.findall(r"apt-get install[^&]*", text))
    assert install.count("--require-hashes --only-binary :all:") == install.count(" -r scripts/locks/")


def test_the_last_stage_runs_one_program_and_has_no_shell_nor_compiler() -> None:
    """OCI-01: its files come from a stage that keeps only the programs that kepd calls."""
    last, before = stages()[-1], stages()[-2]
    packages = next(rest for word, rest in before if word == "RUN" and "apt-get install" in rest)
    kept = set(re.findall(r"! -name '?([^' ]+)", [rest for word, rest in before if word == "RUN"][-1]))

    assert ("COPY", "--from=root / /") in last
    assert dict(last)["ENTRYPOINT"] == '["/opt/kepd/bin/kepd"]'
    assert [word for word, _ in last if word in ("RUN", "ADD")] == []
    assert kept == {"python3*", "nft", "conntrack", "iptables*", "ip6tables*", "xtables-*", "ldconfig"}
    assert {"nftables", "iptables", "conntrack", "python3-iptables"} <= set(packages.split())
    assert not re.search(r"\b(gcc|make|build-essential|-dev)\b", packages)


def test_the_user_is_said_and_the_reason_stands_beside_it() -> None:
    """DS-08: root, because Kubernetes gives other users no capabilities."""
    assert dict(stages()[-1])["USER"] == "0:0"
    assert "Kubernetes gives no capabilities to others" in DOCKERFILE


def test_no_secret_and_no_file_of_a_developer_gets_into_it() -> None:
    names = [rest for word, rest in instructions() if word in ("ARG", "ENV")]
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]

    assert not re.search(r"TOKEN|PASSWORD|SECRET|KEY", " ".join(names))
    assert ignored[0] == "*"
    assert not {"!.git", "!.venv", "!."} & set(ignored)


def test_all_that_an_installation_reads_is_let_through() -> None:
    """Or the build fails at its end."""
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    read = set(re.findall(r"(?m)(?:^| )\.?/?(systemd|scripts)/", (ROOT / "scripts/install").read_text()))

    assert read | {"agent", "proto", "pyproject.toml", "README.md", "LICENSE"} <= let_through


def sbom(**environment: str) -> str:
    command = [sys.executable, str(ROOT / "scripts/sbom.py")]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True).stdout


def test_the_list_of_parts_names_every_locked_requirement_with_its_hashes() -> None:
    """OCI-03, SUP-01."""
    document = json.loads(sbom(SOURCE_DATE_EPOCH="1700000000"))
    packages = {one["name"]: one for one in document["packages"]}
    locked = dict(re.findall(r"(?m)^([\w.-]+)==([^\s\\]+)", LOCK))
    related = {one["relatedSpdxElement"] for one in document["relationships"]}
    ours = dict.fromkeys(
        ("kepd", *(f"kepd-{path.name}" for path in (ROOT / "packages").iterdir() if path.is_dir())), __version__
    )

    assert {name: one["versionInfo"] for name, one in packages.items()} == {**locked, **ours}
    assert sum(one["comment"].count("sha256:") for one in packages.values()) == LOCK.count("--hash=sha256:")
    assert related == {one["SPDXID"] for one in packages.values()}
    assert document["creationInfo"]["created"] == "2023-11-14T22:13:20Z"


def test_the_list_of_parts_has_the_fields_that_spdx_asks_for() -> None:
    """OCI-03: SPDX 2.3, sections 6 and 7."""
    document = json.loads(sbom())
    asked = {"SPDXID", "name", "downloadLocation", "filesAnalyzed"}
    identifiers = [one["SPDXID"] for one in document["packages"]]

    assert (document["spdxVersion"], document["dataLicense"]) == ("SPDX-2.3", "CC0-1.0")
    assert (document["SPDXID"], document["documentNamespace"][:8]) == ("SPDXRef-DOCUMENT", "https://")
    assert all(asked <= set(one) for one in document["packages"])
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", one) for one in identifiers)
    assert len(set(identifiers)) == len(identifiers)


def test_the_list_of_an_image_has_the_packages_of_debian(tmp_path: Path) -> None:
    """FX-11: what a scanner asks for is in the C library as often as in a wheel."""
    status = tmp_path / "status"
    status.write_text(
        "Package: libstdc++6\nStatus: install ok installed\nArchitecture: amd64\nSource: gcc-12 (12.2.0-14)\n"
        "Version: 1:12.2.0-14+deb12u1\nDescription: GNU\n Version: not this one\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 1\n"
    )
    command = [sys.executable, str(ROOT / "scripts/sbom.py"), "--debian", str(status)]
    document = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (found,) = [one for one in document["packages"] if one["SPDXID"].startswith("SPDXRef-deb-")]

    assert found["SPDXID"] == "SPDXRef-deb-libstdc-plus-plus6-amd64"
    assert (
        found["externalRefs"][0]["referenceLocator"] == "pkg:deb/debian/libstdc++6@1%3A12.2.0-14%2Bdeb12u1?arch=amd64"
    )
    assert document["documentNamespace"] != json.loads(sbom())["documentNamespace"]
    assert {one["relatedSpdxElement"] for one in document["relationships"]} == {
        one["SPDXID"] for one in document["packages"]
    }


def test_the_same_tree_gives_the_same_list() -> None:
    """OCI-03."""
    assert sbom(SOURCE_DATE_EPOCH="1") == sbom(SOURCE_DATE_EPOCH="1")
