# SPDX-License-Identifier: Apache-2.0
"""Rewrites a reference to pull the image from another repository; containerd has no path rewrite.

Credentials go by the target, or by the original if `images.rewrite.auth` says so.
"""

import re
from collections.abc import Sequence

import msgspec

from agent.model.images.reference import ImageReference, ReferenceInvalid, parse_reference


class RewriteRule(msgspec.Struct, frozen=True, kw_only=True):
    """`match` is searched in the normalised repository. `is_only`: the original is never tried."""

    match: str
    replace: str
    is_only: bool = False


class RewriteTarget(msgspec.Struct, frozen=True):
    reference: ImageReference
    rule: RewriteRule


def rewritten(reference: ImageReference, rules: Sequence[RewriteRule]) -> RewriteTarget | None:
    """The first rule that matches, applied once; tag and digest stay. None: pull what is written."""
    for rule in rules:
        pattern = re.compile(rule.match)
        if not pattern.search(reference.repo):
            continue
        repo = pattern.sub(rule.replace, reference.repo, count=1)
        text = repo + (f":{reference.effective_tag}" if reference.effective_tag else "")
        text += f"@{reference.digest}" if reference.digest else ""
        try:
            target = parse_reference(text)
        except ReferenceInvalid:
            return None
        return None if target.repo == reference.repo else RewriteTarget(target, rule)
    return None


def rule_fault(rule: RewriteRule) -> str:
    try:
        pattern = re.compile(rule.match)
    except re.error as error:
        return f"{rule.match!r} is not a regular expression: {error}"
    try:
        pattern.sub(rule.replace, "")
        re.sub(f"(?:{rule.match})?", rule.replace, "registry.example.com/a")
    except (re.error, IndexError) as error:
        return f"{rule.replace!r} does not fit {rule.match!r}: {error}"
    return ""
