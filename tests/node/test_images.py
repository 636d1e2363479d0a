# SPDX-License-Identifier: Apache-2.0
"""The images plane with a real containerd and a real registry, behind a proxy that counts, slows down and fails."""

import base64
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from agent.wire.kepd.v1 import image_pb2
from tests.host.process import Kepd
from tests.lab import Fault, Image, Lab, Throttle
from tests.node.image_client import ImageClient
from tests.node.image_node import CONFIG, LIMIT, Node, image_node

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]


@pytest.fixture
def node(lab: Lab, throttle: Throttle, short_path: Path, free_port: int) -> Iterator[Node]:
    with image_node(lab, throttle, short_path, free_port) as running:
        yield running


def peak_of_images(throttle: Throttle, prefix: str) -> int:
    """How many images were being pulled at once, as the registry saw it."""
    spans: dict[str, list[float]] = {}
    for one in throttle.requests(f"/v2/node/{prefix}"):
        name = one.path.split("/")[3]
        begin, end = spans.setdefault(name, [one.started_s, one.started_s])
        spans[name] = [min(begin, one.started_s), max(end, one.ended_s or time.monotonic())]
    edges = sorted([(begin, 1) for begin, _ in spans.values()] + [(end, -1) for _, end in spans.values()])
    depth = peak = 0
    for _, step in edges:
        depth += step
        peak = max(peak, depth)
    return peak


def test_never_more_pulls_than_the_limit_as_counted_at_the_registry(node: Node) -> None:
    """IMG-S01, IMG-S20."""
    images = [node.image(f"limit{number}", 300_000 + number) for number in range(6)]
    more = [node.image(f"raised{number}", 300_000 + number) for number in range(6)]
    node.throttle.reset()
    node.throttle.limit(total_bytes_s=3_000_000)
    outcomes = node.client.pull(*images).result()
    assert {one.result for one in outcomes.values()} == {"pulled"}
    assert peak_of_images(node.throttle, "limit") == LIMIT

    answer = node.client.call("SetPullLimit", image_pb2.SetPullLimitRequest(limit=4), image_pb2.SetPullLimitResponse)
    assert [one.limit for one in answer.limits if one.scope == "node"] == [4]
    node.client.pull(*more).result()
    assert LIMIT < peak_of_images(node.throttle, "raised") <= 4


def test_two_that_want_one_image_cause_one_pull(node: Node) -> None:
    """IMG-S03."""
    image = node.image("shared", 2_000_000)
    node.throttle.limit(total_bytes_s=4_000_000)
    wishes = [node.client.pull(image) for _ in range(5)]
    results = sorted(wish.result()[image].result for wish in wishes)
    blobs = node.blob_gets("shared")

    assert results == ["joined"] * 4 + ["pulled"]
    assert len(blobs) == len(set(blobs))
    assert node.client.pull(image).result()[image].result == "present"


def in_queue(node: Node) -> list[image_pb2.Pull]:
    return [pull for pull in node.client.pulls() if pull.stage == "queued"]


def test_a_cancelled_pull_frees_its_slot_at_once(node: Node) -> None:
    """IMG-S17: by the id, and by ending the call."""
    slow = [node.image(f"slow{number}", 5_000_000) for number in range(LIMIT + 1)]
    quick = node.image("quick")
    node.throttle.inject(Fault(kind="hang", pattern="/v2/node/slow.*/blobs/", after_bytes=100_000))
    wishes = [node.client.pull(image) for image in slow[:LIMIT]]
    node.kepd.wait(lambda: node.throttle.in_flight("GET /v2/node/slow") >= LIMIT, "both slots busy")

    def queue(count: int) -> list[image_pb2.Pull]:
        return node.kepd.wait(lambda: found if len(found := in_queue(node)) == count else None, f"{count} that wait")

    wishes.append(node.client.pull(slow[LIMIT]))
    queue(1)
    waiting = node.client.pull(quick)
    queued = queue(2)
    assert {pull.wait_reason for pull in queued} == {"slot"}
    assert "2 of 2 slots busy" in queued[0].wait_text

    wishes[LIMIT].give_up()
    running = next(pull for pull in node.client.pulls() if pull.stage != "queued")
    began_s = time.monotonic()
    node.client.call("CancelPull", image_pb2.CancelPullRequest(id=running.id), image_pb2.CancelPullResponse)
    assert waiting.result()[quick].result == "pulled"
    first = min(one.started_s for one in node.throttle.requests("/v2/node/quick/"))
    assert first - began_s < 10.0, "long before the hanging pull would have ended"
    node.throttle.clear()
    assert sorted(wish.result()[image].result for wish, image in zip(wishes[:LIMIT], slow, strict=False)) == [
        "cancelled",
        "pulled",
    ]


FAULTS = [
    ("hang", Fault(kind="hang", pattern="/blobs/", after_bytes=1000), {"timeout"}),
    ("reset", Fault(kind="reset", pattern="/blobs/", after_bytes=1000), {"net"}),
    ("unauthorized", Fault(kind="status", pattern="/v2/node/", status=401), {"auth"}),
    ("forbidden", Fault(kind="status", pattern="/v2/node/", status=403), {"auth"}),
    ("missing", Fault(kind="status", pattern="/v2/node/", status=404), {"notfound"}),
    ("too-many", Fault(kind="status", pattern="/v2/node/", status=429), {"rate"}),
    ("broken", Fault(kind="status", pattern="/v2/node/", status=500), {"5xx"}),
    ("truncated", Fault(kind="truncate", pattern="/blobs/"), {"corrupt", "net"}),
    ("round-and-round", Fault(kind="redirect", pattern="/v2/node/"), {"unknown", "net", "5xx"}),
]


@pytest.mark.parametrize(("name", "fault", "classes"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_registry_that_fails_gives_the_reason_and_others_go_on(
    node: Node, name: str, fault: Fault, classes: set[str]
) -> None:
    """IMG-B03, IMG-B06: another registry's pull is not held up meanwhile."""
    image = node.image(name, 400_000)
    other = Image.sized(f"node/other-{name}", 100_000)
    direct = node.lab.push(other)
    with node.throttle.fault(fault):
        wish = node.client.pull(image)
        assert node.client.pull(direct).result()[direct].result == "pulled"
        outcome = wish.result()[image]

    assert outcome.result == "failed"
    assert outcome.error_class in classes, outcome
    assert outcome.reason in ("ErrImagePull", "RegistryUnavailable")
    assert outcome.message
    assert "\n" not in outcome.message


@pytest.mark.parametrize("name", ["shop/web:429", "x/429/retry-after:999999"])
def test_a_missing_image_whose_name_has_numbers_holds_no_registry(node: Node, name: str) -> None:
    """Others' pulls from the same registry go on."""
    there = node.image(f"beside-{name.replace(':', '-').replace('/', '-')}", 100_000)
    missing = f"{there.partition('/')[0]}/{name}"
    outcome = node.client.pull(missing).result()[missing]

    assert (outcome.result, outcome.error_class) == ("failed", "notfound"), outcome
    assert node.client.pull(there).result()[there].result == "pulled"


def test_a_layer_with_a_wrong_digest_is_refused_and_the_right_one_taken_later(node: Node) -> None:
    """IMG-P07."""
    image = Image.sized("node/wrong", 300_000)
    node.lab.push(image)
    built = node.lab.build(image)
    blob = node.lab.registry.blob_file(built.layer_digests[-1])
    good = blob.read_bytes()
    blob.write_bytes(b"\x00" * len(good))
    reference = node.lab.throttled(image)
    outcome = node.client.pull(reference).result()[reference]
    blob.write_bytes(good)

    assert (outcome.result, outcome.error_class) == ("failed", "corrupt"), outcome
    later = node.client.pull(reference).result()[reference]
    assert later.result == "pulled", later


def test_progress_goes_from_the_queue_to_the_end(node: Node) -> None:
    """IMG-T05."""
    image = node.image("progress", 3_000_000, 3_000_000)
    node.throttle.limit(total_bytes_s=3_000_000)
    wish = node.client.pull(image)
    seen = node.kepd.wait(
        lambda: [p for p in node.client.pulls() if p.stage == "downloading" and p.total_bytes and p.percent], "percent"
    )
    wish.result()

    assert 6_000_000 < seen[0].total_bytes < 8_000_000
    assert 0 < seen[0].done_bytes < seen[0].total_bytes
    assert seen[0].rate_bytes_per_second > 0
    assert wish.states[image][-1] == "done"
    assert "downloading" in wish.states[image]


def test_names_that_are_none_are_told_as_a_kubelet_would(node: Node) -> None:
    """IMG-P03."""
    outcome = node.client.pull("Not/A Name").result()["Not/A Name"]

    assert (outcome.result, outcome.reason) == ("refused", "InvalidImageName")


def secret_places(node: Node, image: str) -> dict[str, str]:
    """All texts that kepd gives away or writes."""
    texts = {
        "log": node.kepd.log.read_text(),
        "metrics": node.kepd.get("/metrics")[1],
        "pulls": node.kepd.ctl("get", "pulls", "-o", "json").stdout,
        "images": node.kepd.ctl("get", "images", "-o", "json").stdout,
        "explain": node.kepd.ctl("explain", "pull", image).stdout,
        "events": node.kepd.ctl("get", "events", "-o", "json").stdout,
        "config": node.kepd.ctl("config", "show").stdout,
    }
    for path in (node.kepd.folder / "state").rglob("*"):
        if path.is_file():
            texts[str(path)] = path.read_bytes().decode("utf-8", "replace")
            assert path.stat().st_mode & 0o077 == 0, path
    return texts


def forms(secret: str) -> list[str]:
    """A secret as it is, and encoded with and without its user, at any place of a base64 text."""
    pairs = [f"{'x' * shift}{secret}" for shift in range(3)] + [f"user:{secret}"]
    return [secret, *(base64.b64encode(pair.encode()).decode().rstrip("=")[4:-4] for pair in pairs)]


NODE_SECRET, PLUGIN_SECRET = "hunter2-of-the-node-file", "correct-horse-of-the-plugin"
PLUGIN = """#!/bin/sh
cat >/dev/null
echo 'said on the side: PASSWORD' >&2
echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1",
"cacheKeyType":"Registry","cacheDuration":"0s","auth":{"HOST":{"username":"plugin","password":"PASSWORD"}}}'
exit CODE
"""
PROVIDERS = """apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- {name: giver, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: ["HOST"], defaultCacheDuration: 0s}
- {name: failer, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: ["HOST"], defaultCacheDuration: 0s}
"""


def test_secrets_appear_nowhere(lab: Lab, throttle: Throttle, short_path: Path, free_port: int) -> None:
    """IMG-B08, IMG-C10: credentials of a file, of a plugin and of one that fails are used, refused, and looked for."""
    host = lab.throttle.address
    auths = {"auths": {host: {"username": "user", "password": NODE_SECRET}}}
    (short_path / "config.json").write_text(json.dumps(auths))
    (short_path / "providers.yaml").write_text(PROVIDERS.replace("HOST", host))
    for name, code in (("giver", "0"), ("failer", "1")):
        plugin = short_path / name
        plugin.write_text(PLUGIN.replace("HOST", host).replace("PASSWORD", PLUGIN_SECRET).replace("CODE", code))
        plugin.chmod(0o755)
    extra = (
        f"  providerConfig: {short_path}/providers.yaml\n  providerBinDir: {short_path}\ntelemetry: {{verbosity: 9}}\n"
    )
    with image_node(lab, throttle, short_path, free_port, extra) as node:
        image = node.image("private")
        with node.throttle.fault(Fault(kind="status", pattern="/v2/node/private", status=401)):
            failed = node.client.pull(image).result()[image]
        assert failed.error_class == "auth"
        time.sleep(0.6)
        assert node.client.pull(image).result()[image].result == "pulled"
        texts = {**secret_places(node, image), "outcome": str(failed)}

    wanted = [*forms(NODE_SECRET), *forms(PLUGIN_SECRET)]
    assert [(where, one) for where, text in texts.items() for one in wanted if one in text] == []
    assert "kepd_credential_provider_seconds_count" in texts["metrics"]
    assert 'kepd_credential_provider_errors_total{provider="failer"}' in texts["metrics"]


def test_state_that_is_cut_off_or_foreign_is_kept_aside_and_learnt_again(node: Node) -> None:
    """DELIVER 3: nothing that is on the node is lost, or fetched again, for a file that cannot be read."""
    image = node.image("state", 300_000)
    node.client.pull(image).result()
    node.kepd.end()
    folder = node.kepd.folder / "state" / "images"
    files = [path for path in folder.rglob("*.json") if path.is_file()]
    for number, path in enumerate(files):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if number % 2 else b'{"kind": "Foreign"}')
    node.client.close()
    node.start()
    node.kepd.wait(lambda: node.client.images(), "the images")
    fetched = len(node.blob_gets("state"))
    again = node.client.pull(image).result()[image]

    assert {"images.json", "sizes.json"} <= {path.name for path in files}
    assert any(path.name.endswith(".aside") for path in folder.rglob("*"))
    assert again.result in ("present", "revalidated")
    assert len(node.blob_gets("state")) == fetched
    assert "image_state_set_aside" in node.kepd.log.read_text()


def test_pulls_survive_a_restart_of_containerd(node: Node) -> None:
    """The pull that was running is made again; nobody gets an error."""
    image = node.image("restart", 3_000_000)
    node.throttle.limit(total_bytes_s=2_000_000)
    wish = node.client.pull(image)
    node.kepd.wait(lambda: node.throttle.in_flight("GET /v2/node/restart/blobs"), "bytes flow")
    node.lab.containerd.restart()
    node.lab.cri.reconnect()
    node.throttle.limit(total_bytes_s=None)

    assert wish.result(60)[image].result == "pulled"


def our_leases(lab: Lab) -> set[str]:
    """Leases of kepd; other tests' cancelled pulls keep theirs for an hour, by design."""
    return {lease for lease in lab.containerd.ctr("leases", "ls", "-q").split() if lease.startswith("kepd-")}


def fetched(node: Node, images: Collection[str]) -> Counter[str]:
    """How often the registry sent a blob of each."""
    names = Counter(path.split("/")[3] for path in node.blob_gets("many[0-9]*"))
    return Counter({image: names[image.split("/")[2].partition(":")[0]] for image in images})


@pytest.mark.slow
def test_kill_at_random_points_during_200_pulls_loses_and_repeats_nothing(node: Node) -> None:
    """No image lost, none pulled twice that was complete, no leaked lease."""
    images = [node.image(f"many{number:03d}", 20_000 + number) for number in range(200)]
    node.throttle.reset()
    before = our_leases(node.lab)
    chance = random.Random(4711)
    complete: set[str] = set()
    for _ in range(6):
        wish = node.client.pull(*images)
        time.sleep(chance.uniform(0.2, 1.2))
        complete |= set(images) & set(node.client.images())
        marks = fetched(node, complete)
        node.restart(signal.SIGKILL)
        wish.join(10)
        assert fetched(node, complete) == marks, "what was complete is not fetched again"
    outcomes = node.client.pull(*images).result(120)
    present = node.client.images()

    assert {one.result for one in outcomes.values()} <= {"pulled", "present", "joined", "revalidated"}
    assert fetched(node, complete) == marks, "nor in the end: revalidated means that the registry was only asked"
    assert [name for name in images if name not in present] == []
    assert our_leases(node.lab) <= before, "no lease is left that was not there before"


def test_a_full_disk_is_told_and_recovers(short_path: Path, free_port: int) -> None:
    """IMG-B06: a clear reason, and the same pull works once there is room."""
    disk = short_path / "d"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "kepd-test", str(disk)], check=True)
    try:
        with Lab.start(parent=disk) as small:
            image = Image.sized("node/large", 20_000_000)
            reference = small.push(image)
            filler = disk / "filler"
            free = shutil.disk_usage(disk).free
            with filler.open("wb") as out:
                out.truncate(0)
                os.posix_fallocate(out.fileno(), 0, free - 8_000_000)
            with Kepd(short_path, free_port, endpoint=small.endpoint, extra=CONFIG) as kepd:
                kepd.start("--planes", "images").wait_ready()
                client = ImageClient(kepd.socket)
                outcome = client.pull(reference).result(60)[reference]
                assert (outcome.result, outcome.error_class) == ("failed", "nospace"), outcome
                assert "no space left on device" in outcome.message
                filler.unlink()
                later = kepd.wait(
                    lambda: (got := client.pull(reference).result(60)[reference]).result == "pulled" and got, "room", 60
                )
                assert later.image_id
                client.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_what_people_see(node: Node) -> None:
    """The commands, on one pull that hangs and one that waits for it."""
    slow, waiting = node.image("seen-slow", 2_000_000), node.image("seen-waiting", 1_000_000)
    node.kepd.ctl("set", "pull-limit", "1")
    node.throttle.inject(Fault(kind="hang", pattern="/v2/node/seen-slow/blobs/", after_bytes=100_000))
    first = node.client.pull(slow)
    node.kepd.wait(lambda: node.throttle.in_flight("GET /v2/node/seen-slow"), "the first pull")
    second = node.client.pull(waiting)
    node.kepd.wait(lambda: [pull for pull in node.client.pulls() if pull.stage == "queued"], "one that waits")
    pulls = node.kepd.ctl("get", "pulls")
    explained = node.kepd.ctl("explain", "pull", waiting)

    assert "waiting at 1: 1 of 1 slots busy" in pulls.stdout
    assert "node: 1 of 1 running" in pulls.stderr
    assert "1 of 1 slots busy" in explained.stdout

    node.throttle.clear()
    first.result()
    second.result()
    done = node.kepd.ctl("pull", waiting)
    listed = node.kepd.ctl("get", "images", "-o", "wide")
    queued = node.kepd.ctl("pull", "--no-wait", node.image("seen-later"))
    missing = node.kepd.ctl("pull", waiting.replace("seen-waiting", "nothing"))

    assert (done.returncode, "present" in done.stdout) == (0, True)
    assert "seen-waiting" in listed.stdout
    assert queued.stdout.startswith("queued")
    assert (missing.returncode, "ErrImagePull" in missing.stdout) == (1, True)
    assert node.kepd.ctl("cancel", "pull", "nothing").returncode == 3
    assert node.kepd.ctl("get", "mirrors").returncode == 0
    assert "kepd_image_pulls_total" in node.kepd.get("/metrics")[1]


POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: 'IMAGE', command: [sleep, "1000"]}]}
"""


def test_events_of_a_pod_have_the_kubelets_words_and_outlive_kepd(lab: Lab, short_path: Path, free_port: int) -> None:
    """IMG-B03: the pods plane's pulls go through the queue, and what happens to them is kept."""
    image = lab.push(Image.sized("node/events", 50_000))
    extra = f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{lab.place.cgroup_parent.strip('/')}'}}\n"
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as kepd:
        good, bad = kepd.manifests / "good.yaml", kepd.manifests / "bad.yaml"
        good.write_text(POD.replace("NAME", "good").replace("IMAGE", image))
        bad.write_text(POD.replace("NAME", "bad").replace("IMAGE", image.replace("events", "nothing")))
        kepd.start("--planes", "images,pods")
        kepd.wait(lambda: kepd.socket.exists() and "Failed" in kepd.ctl("events").stdout, "the failure", 20)
        kepd.wait(lambda: "Pulled" in kepd.ctl("events").stdout, "the success", 20)
        lines = kepd.ctl("events").stdout
        assert f'Successfully pulled image "{image}" in' in lines
        assert "default/bad-n1" in lines
        assert "Error: ErrImagePull" in lines
        for path in (good, bad):
            path.unlink()
        kepd.wait(lambda: kepd.pods() == [], "all pods gone", 30)
        kepd.end()
        kepd.start("--planes", "images")
        kepd.wait(lambda: kepd.socket.exists() and "Pulled" in kepd.ctl("events").stdout, "events of before", 20)
    lab.cri.remove_image(image)
