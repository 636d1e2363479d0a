# SPDX-License-Identifier: Apache-2.0
import pytest

from agent.config.strict_yaml import UnreadableYaml, parse_documents, plain


def read(text: str | bytes) -> object:
    documents, duplicates = parse_documents(text, "f")
    assert duplicates == []
    return plain(documents[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no", "no"),
        ("017", "017"),
        ("12:30:45", "12:30:45"),
        ("2026-01-01", "2026-01-01"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        ("yes", "yes"),
        ("True", "True"),
        ("true", True),
        ("42", 42),
        ("-1.5e3", -1500.0),
        ("'42'", "42"),
        ("null", None),
        ("~", None),
    ],
)
def test_scalars_are_those_of_json(text: str, expected: object) -> None:
    """CFG-03: what YAML 1.1 would turn into something else stays text."""
    assert {"a": expected} == read(f"a: {text}")


def test_a_key_that_stands_twice_is_an_error_with_both_lines() -> None:
    """CFG-03: the usual loader keeps the last one silently."""
    _, duplicates = parse_documents("a: 1\nb: 2\na: 3\n", "f")

    assert [str(finding) for finding in duplicates] == ["f:3: key 'a' occurs again; it is first at f:1"]


def test_aliases_are_followed_within_bounds() -> None:
    assert read("a: &x [1]\nb: *x\n") == {"a": [1], "b": [1]}


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (BOMB, "values once its aliases are expanded"),
        ("[" * 100_000, "nested deeper than 64 levels"),
        ("a: &a [*a]", "refers to nothing complete above it"),
        ("a: *nothing", "undefined alias"),
        (b"\xff\xfe\x00", "not YAML"),
        ("a: b: c", "not YAML"),
        ("\x00", "not YAML"),
        ("{[1]: 2}", "a key must be a plain word"),
        ("a: !!python/name:os.system x", "is not supported"),
        ("a: &x [" + "y," * 5_300_000 + "]", "bytes; at most"),
    ],
)
def test_texts_that_break_a_bound_are_refused_in_one_line(text: str | bytes, complaint: str) -> None:
    """CFG-03: size, depth and aliases are capped before anything is expanded."""
    with pytest.raises(UnreadableYaml) as refused:
        parse_documents(text, "f")

    if complaint != "undefined alias":
        assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("f")


def test_aliases_that_multiply_depth_are_refused() -> None:
    levels = ["a0: &a0 " + "{x: " * 50 + "1" + "}" * 50]
    levels += [f"a{n}: &a{n} " + "{x: " * 50 + f"*a{n - 1}" + "}" * 50 for n in range(1, 40)]

    with pytest.raises(UnreadableYaml, match="once its aliases are expanded"):
        parse_documents("\n".join(levels), "f")


def test_all_documents_of_a_text_share_one_bound() -> None:
    """FX-9: 7 KB in 40 documents cost 91 MiB."""
    bomb = (
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: [*b, *b, *b, *b, *b, *b, *b, *b]\n"
    )
    documents, _ = parse_documents(bomb, "f")

    assert len(documents) == 1
    with pytest.raises(UnreadableYaml, match="more than 200000 values"):
        parse_documents("---\n".join([bomb] * 400), "f")


def test_several_documents_and_empty_ones() -> None:
    documents, _ = parse_documents("---\na: 1\n---\n---\nb: 2\n", "f")

    assert [plain(document) for document in documents] == [{"a": 1}, {"b": 2}]
