"""Users' YAML and JSON: what they hold, and errors that name the file and the line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.files import find_file
from agentrl.plugins.specs import load_tools
from agentrl.yaml_reader import parse_flow, parse_scalar, read_json, read_yaml


def write(folder: Path, content: str | bytes) -> Path:
    file = folder / "file.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1e1, 0x10, 0o17, 010, 1_000, .5, 1.]", [10.0, 16, 15, 10, 1000, 0.5, 1.0]),
        ("[yes, off, 2024-01-01, 1:30, ~]", ["yes", "off", "2024-01-01", "1:30", None]),
        (b"\xef\xbb\xbfa: 1", {"a": 1}),
        ("b: &b {x: 0, y: 1}\nc: {<<: *b, x: 1}", {"b": {"x": 0, "y": 1}, "c": {"x": 1, "y": 1}}),
        (
            "[&a {x: 0, lr: 0}, &b {x: 1, lr: 1}, {<<: [*a, *b]}]",
            [{"x": 0, "lr": 0}, {"x": 1, "lr": 1}, {"x": 0, "lr": 0}],
        ),
        (
            "b: &b {x: 0}\nlater: {deep: {a: &a {<<: *b, x: 1}}}\nc: {<<: *a}",
            {"b": {"x": 0}, "later": {"deep": {"a": {"x": 1}}}, "c": {"x": 1}},
        ),
    ],
)
def test_values(tmp_path: Path, text: str | bytes, value: Any) -> None:
    assert read_yaml(write(tmp_path, text)) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb:\n- {x: 1, x: 2}", "line 3, column 10: key 'x' is given twice"),
        ("b: &b {x: 1}\nc:\n  <<: *b\n  <<: *b", "line 4, column 3: key '<<' is given twice"),
        ("a: &a {x: 1}\nb: {<<: [*a, 3]}", "line 2, column 14: `<<` merges mappings, got a scalar"),
        ("a: 1\n2: 3", "line 2, column 1: key 2 is not text"),
        ("? [a]\n: 1", "line 1, column 3: key of type sequence is not text"),
        ("a: !!int x", "line 1, column 4: x cannot be read as int"),
        ("a: !!bool x", "line 1, column 4: x cannot be read as bool"),
        ("a: " + "9" * 5000, f"line 1, column 4: {'9' * 40}... cannot be read as int"),
        ("a: 1\nb: !!set {x}", "line 2, column 4: tag tag:yaml.org,2002:set is not known; give text"),
        ("a: !!timestamp x", "line 1, column 4: tag tag:yaml.org,2002:timestamp is not known"),
        ("a: &a [*a]", "line 1, column 4: the value holds itself"),
        ("[" * 2000, "is nested too deeply"),
        (b"a: 1\nb: \xe9", "line 2: byte 0xe9 is not UTF-8"),
        ("a: \x01", "is not YAML: character 4: U+0001 is not allowed"),
    ],
)
def test_errors_name_the_file_and_the_line(tmp_path: Path, text: str | bytes, says: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError, match=re.escape(f"{file}: {says}")):
        read_yaml(file)


def test_json_follows_the_same_rules(tmp_path: Path) -> None:
    assert read_json(write(tmp_path, b'\xef\xbb\xbf{"a": 1}')) == {"a": 1}
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_json(write(tmp_path, "[" * 200_000))


def test_a_value_given_on_the_command_line() -> None:
    assert parse_scalar("9" * 5000) == "9" * 5000
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_flow("[" * 2000)


def test_a_name_that_no_file_can_have() -> None:
    for name in ("a" * 5000, "a\0b"):
        with pytest.raises(ConfigError, match="does not exist"):
            find_file(name)


@pytest.mark.parametrize("config", ["[]", "0", "''", "false", "[timeout_s]"])
def test_a_config_that_is_no_mapping_is_refused(tmp_path: Path, config: str) -> None:
    file = write(tmp_path, f"tools:\n- class_name: calculator\n  config: {config}\n")
    with pytest.raises(ConfigError, match=r"tools\[0\].config: got .*, wanted a mapping"):
        load_tools(file)


def test_an_empty_tool_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found nothing, wanted a mapping with `tools"):
        load_tools(write(tmp_path, "# nothing yet\n"))
