"""Reads users' YAML by the rules of version 1.2: `1e-6` is a number, `on` is text, a key given twice is an error.

It also reads users' JSON, with the same rule for keys.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import ConfigError

_STR, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_WHOLE = r"(?:[0-9]{1,3}(?:_[0-9]{3})+|[0-9]+)"
"""Digits, or thousands such as 16_384. `2_5` is text, as in YAML 1.2: the two bounds of a threshold."""
_RESOLVERS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": rf"[-+]?{_WHOLE}|0x[0-9a-fA-F]+|0o[0-7]+",
    "float": rf"[-+]?(?:\.[0-9]+|{_WHOLE}(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?i:inf)|\.(?i:nan)",
}
_PARQUET = b"PAR1"
"""The first bytes of every parquet file."""
_LONGEST_SHOWN = 40
"""Longer values are cut in errors."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2 and without silent duplicates."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own name)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse keys that are given twice and keys that are not text."""
        # Checked in what the file says: once `<<` is merged, no key is there twice.
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key_node.tag not in (_STR, _MERGE):
                shown = key if isinstance(key_node, yaml.ScalarNode) else f"of type {key_node.id}"
                raise yaml.constructor.ConstructorError(None, None, f"key {shown} is not text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' is given twice", key_node.start_mark)
            seen.add(key)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace `<<` by the pairs that it merges; own keys win, then the first mapping of a list, as YAML says."""
        # PyYAML tells keys apart by the identity of their text: with {<<: [*a, *b]} the value of a key `x` comes from
        # *a, but that of `lr` from *b.
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        own = [pair for pair in node.value if pair[0].tag != _MERGE]
        for _, value in (pair for pair in node.value if pair[0].tag == _MERGE):
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(source, yaml.MappingNode):
                    problem = f"`<<` merges mappings, got a {source.id}"
                    raise yaml.constructor.ConstructorError(None, None, problem, source.start_mark)
                self.flatten_mapping(source)
                for pair in source.value:
                    merged.setdefault(pair[0].value, pair)
        for key, _ in own:
            merged.pop(key.value, None)
        node.value = [*merged.values(), *own]

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node; one that its tag does not allow is an error with its line."""
        try:
            return super().construct_object(node, deep=True)  # a list that holds itself (`&a [*a]`) is then an error
        except (ValueError, KeyError) as error:  # `!!int x`, `!!bool x`
            kind, text = node.tag.rpartition(":")[2], str(node.value)
            shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
            problem = f"{shown} cannot be read as {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


for _name, _pattern in _RESOLVERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"(?:{_pattern})\Z"), None)
_Loader.add_implicit_resolver(_MERGE, re.compile(r"<<\Z"), ["<"])


_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag and tag.rpartition(":")[2] in (*_RESOLVERS, "str", "seq", "map")  # what JSON has: no dates, no sets
}


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = node.value.replace("_", "")
    base = {"0x": 16, "0o": 8}.get(text[:2], 10)
    return int(text, base)


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = node.value.replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _refuse_tag(loader: _Loader, node: yaml.Node) -> Any:
    problem = f"tag {node.tag} is not known; give text, a number, true, false, null, a list or a mapping"
    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.add_constructor(None, _refuse_tag)
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; None if it is empty.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or gives a key twice; the message gives the line.
    """
    try:
        return yaml.load(_read_text(path), _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {_explain(error)}") from error
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply") from None


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ConfigError: the file cannot be read, is not JSON, or gives a key twice.
    """
    try:
        return json.loads(_read_text(path), object_pairs_hook=_unique)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    except KeyError as error:
        raise ConfigError(f"{path}: key {error} is given twice") from error
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply") from None


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # a ValueError: the name holds a null character
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if content.startswith(_PARQUET):
        raise ConfigError(
            f"{path} is a parquet file, wanted YAML or JSON; a key names rows, such as data.train_files={path} for "
            f"training or data.path={path} for `agentrl generate` and `agentrl eval`"
        )
    try:
        return content.decode("utf-8-sig")  # with or without the mark that Windows editors put first
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line}: byte {content[error.start]:#x} is not UTF-8") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise KeyError(key)
        mapping[key] = value
    return mapping


def parse_scalar(text: str) -> Any:
    """Value of a plain scalar, whatever characters it holds: number, bool, null or the text itself."""
    loader = _Loader("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    try:
        return loader.construct_object(yaml.ScalarNode(tag, text))
    except yaml.YAMLError:  # a whole number of more digits than Python reads
        return text


def parse_flow(text: str) -> Any:
    """Value of a list, mapping or quoted string in YAML's flow style. Raises ValueError."""
    try:
        return _split_tight_pairs(yaml.load(text, _Loader))
    except yaml.YAMLError as error:
        raise ValueError(_explain(error)) from error
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _split_tight_pairs(value: Any) -> Any:
    """Read `{a:1}` as Hydra does, though YAML wants a space after the colon."""
    if isinstance(value, list):
        return [_split_tight_pairs(item) for item in value]
    if not isinstance(value, dict):
        return value
    pairs = {}
    for key, item in value.items():
        if item is None and ":" in key:
            key, _, rest = key.partition(":")
            item = parse_scalar(rest.strip())
        pairs[key] = _split_tight_pairs(item)
    return pairs


def _explain(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):  # knows a position, no line
        return f"is not YAML: character {error.position + 1}: U+{error.character:04X} is not allowed"
    problem = getattr(error, "problem", None) or str(error)
    problem = problem.replace("found unconstructable recursive node", "the value holds itself")
    if not isinstance(error, yaml.constructor.ConstructorError):
        problem = f"is not YAML: {problem}"
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem
