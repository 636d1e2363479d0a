# SPDX-License-Identifier: Apache-2.0
"""Rights in `deploy/` against what the code asks an API server for, read from its syntax."""

import ast
from collections.abc import Iterator
from functools import cache

import pytest
import yaml

from agent.drivers.kube import resource as resources
from scripts.sources import modules
from tests.deploy.kustomize import render
from tests.host.process import ROOT

Right = tuple[str, str, str]
"""Group, resource, verb."""

VERBS = {
    "follow": ("list", "watch"),
    "get": ("get",),
    "create": ("create",),
    "patch": ("patch",),
    "delete": ("delete",),
}
"""Methods of the client that take a resource first."""
ROLES = {
    "source.py": "kepd-services",
    "pod_source.py": "kepd-images",
    "rollout_source.py": "kepd-rollouts",
    "startup_taint.py": "kepd-taint",
    "event_writer.py": "kepd-events",
}
DOCUMENTED = {"cluster.py": "docs/devices.md"}
"""What runs as a service of the node, with a kubeconfig that its administrator makes: the role is on a page."""
BOUND = {
    "base": {"kepd-services"},
    "overlays/debug": {"kepd-services"},
    "overlays/dns": {"kepd-services"},
    "overlays/iptables": {"kepd-services"},
    "overlays/events": {"kepd-services", "kepd-events"},
    "overlays/images": {"kepd-services", "kepd-images"},
    "overlays/kind": {"kepd-services", "kepd-images"},
    "overlays/rollouts": {"kepd-services", "kepd-images", "kepd-rollouts"},
    "overlays/taint": {"kepd-services", "kepd-taint"},
}
SHARED = {"kepd-rollouts": {"kepd-images"}, "kepd-taint": {"kepd-services"}}
"""A role that is bound only beside others leaves to them what they grant."""


@cache
def asking_modules() -> list[tuple[str, ast.Module, set[str]]]:
    return list(_asking_modules())


def _asking_modules() -> Iterator[tuple[str, ast.Module, set[str]]]:
    """Every module outside the driver that names a resource, with those names."""
    texts = {path: path.read_text() for path in modules()}
    for path in (path for path, text in texts.items() if resources.__name__ in text):
        tree = ast.parse(texts[path])
        imports = [one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)]
        names = {alias.name for one in imports if one.module == resources.__name__ for alias in one.names}
        asked = {name for name in names if isinstance(getattr(resources, name), resources.Resource)}
        if asked and path.parent.name != "kube":
            yield path.name, tree, asked


def used_verbs(tree: ast.Module) -> set[str]:
    calls = [one.func for one in ast.walk(tree) if isinstance(one, ast.Call)]
    methods = {
        one.attr for one in calls if isinstance(one, ast.Attribute) and ast.unparse(one.value).endswith("_client")
    }
    return {verb for method in methods for verb in VERBS.get(method, ())}


def asked_for(role: str) -> set[Right]:
    rights = set()
    for module, tree, names in asking_modules():
        if ROLES.get(module) == role:
            found = [getattr(resources, name) for name in names]
            rights |= {(one.group, one.plural, verb) for one in found for verb in used_verbs(tree)}
    return rights


def granted(role: str) -> set[Right]:
    rendered = [render(ROOT / "deploy" / overlay) for overlay, roles in BOUND.items() if role in roles]
    rules = rendered[0]["ClusterRole", role]["rules"]
    return {
        (group, plural, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for plural in rule["resources"]
        for verb in rule["verbs"]
    }


def test_every_module_that_asks_an_api_server_has_a_role() -> None:
    assert {module for module, _, _ in asking_modules()} == {*ROLES, *DOCUMENTED}


@pytest.mark.parametrize("module", sorted(DOCUMENTED))
def test_a_role_on_a_page_grants_what_the_code_asks_for_and_nothing_else(module: str) -> None:
    """DS-02, DS-03."""
    tree = next(tree for name, tree, _ in asking_modules() if name == module)
    blocks = (ROOT / DOCUMENTED[module]).read_text().split("```yaml\n")[1:]
    roles = [yaml.safe_load(block.partition("```")[0]) for block in blocks if "kind: ClusterRole\n" in block]
    asked: set[Right] = set()
    for one in (one for one in ast.walk(tree) if isinstance(one, ast.Call) and one.args):
        verbs = VERBS.get(one.func.attr, ()) if isinstance(one.func, ast.Attribute) else ()
        resource = getattr(resources, ast.unparse(one.args[0]).partition(".")[0], None)
        if isinstance(resource, resources.Resource):
            asked |= {(resource.group, resource.plural, verb) for verb in verbs}

    (role,) = roles
    assert asked == {
        (group, plural, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for plural in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_role_of_a_page_is_that_of_the_manifest() -> None:
    """DVD-6: the page shows it, the manifest has the policy with it."""
    objects = list(yaml.safe_load_all((ROOT / "deploy/devices.yaml").read_text()))
    roles = [one["rules"] for one in objects if one["kind"] == "ClusterRole"]
    page = (ROOT / "docs/devices.md").read_text().split("```yaml\n")[1:]
    shown = [yaml.safe_load(block.partition("```")[0]) for block in page if "kind: ClusterRole\n" in block]

    assert roles == [one["rules"] for one in shown]
    assert [one["kind"] for one in objects[3:]] == ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]


@pytest.mark.parametrize("role", sorted(set(ROLES.values())))
def test_a_role_grants_what_the_code_asks_for_and_nothing_else(role: str) -> None:
    """DS-02, DS-03."""
    by_others = {right for other in SHARED.get(role, ()) for right in granted(other)}

    assert asked_for(role) - by_others == granted(role)
    assert granted(role), "an empty role would hide that nothing was found"


@pytest.mark.parametrize("overlay", sorted(BOUND))
def test_roles_are_bound_only_where_their_plane_runs(overlay: str) -> None:
    """DS-03."""
    objects = render(ROOT / "deploy" / overlay)
    bound = {one["roleRef"]["name"] for (kind, _), one in objects.items() if kind == "ClusterRoleBinding"}
    subjects = [one["subjects"] for (kind, _), one in objects.items() if kind == "ClusterRoleBinding"]

    assert bound == BOUND[overlay] == {name for kind, name in objects if kind == "ClusterRole"}
    assert all(one == [{"kind": "ServiceAccount", "name": "kepd", "namespace": "kube-system"}] for one in subjects)


def test_every_overlay_is_among_these() -> None:
    assert set(BOUND) == {"base", *(f"overlays/{path.name}" for path in (ROOT / "deploy/overlays").iterdir())}
