# SPDX-License-Identifier: Apache-2.0
"""Where two JSON values differ."""

from collections.abc import Iterable

RELATIVE_TOLERANCE = 1e-9


def compare(expected: object, actual: object, path: str) -> Iterable[str]:
    """Differences between two JSON values; floats may differ by rounding, everything else must be the same."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted({*expected, *actual}, key=str):
            if key not in actual or key not in expected:
                side = "missing" if key not in actual else "unexpected"
                yield f"{path}.{key}: {side}: {(expected | actual)[key]!r}"
            else:
                yield from compare(expected[key], actual[key], f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for position, (left, right) in enumerate(zip(expected, actual, strict=True)):
            yield from compare(left, right, f"{path}[{position}]")
    elif isinstance(actual, float) and isinstance(expected, (int, float)) and not isinstance(expected, bool):
        if abs(expected - actual) > RELATIVE_TOLERANCE * max(abs(expected), abs(actual)):
            yield f"{path}: expected {expected!r}, got {actual!r}"
    elif type(expected) is not type(actual) or expected != actual:
        yield f"{path}: expected {expected!r}, got {actual!r}"
