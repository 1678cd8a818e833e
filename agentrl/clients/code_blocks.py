"""The code in an answer: fenced blocks of Markdown as models write them."""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from dataclasses import dataclass

_TAG = r"<[/|]?[\w-]{1,20}\|?>[ \t]*"
_OPENING = re.compile(
    r"(?P<lead>[ \t]*(?:(?:>|[-*+]|\d{1,3}[.)])[ \t]+)*)"
    rf"(?:{_TAG}){{0,4}}(?P<fence>`{{3,}}|~{{3,}})[ \t]*(?P<info>[^`]*)"
)
"""A fence with what stands before it: spaces, marks of list items (`- `, `2. `) and of quotes (`> `), `<answer>`."""
_BEHIND_TEXT = re.compile(
    r"(?P<lead>)(?P<text>(?:[^`]|(?<!`)`{1,2}(?!`))*)(?<!`)(?P<fence>`{3,})(?P<info>[\w+#-]*)[ \t]*"
)
"""A fence at the end of a line of prose: "Here it is: ```python". A mark that is no language needs the colon."""
_CLOSING_TAGS = re.compile(rf"(?:{_TAG}){{1,4}}$")
_CLOSING_PROSE = re.compile(r"( {0,3}`{3,})[ \t]+[^\s`]+[ \t]+[^\s`][^`]*")
_SECTION_ENDS = ("</think>", "</answer>")
"""Lines that end a block that was not closed before."""
_WORD = re.compile(r"[\w+#-]+")
_TAGS = {
    "python": ("python", "py", "python3", "python2", "pycon", "ipython", "sage"),
    "cpp": ("cpp", "c++", "cc", "cxx", "c++17", "c++20"),
    "nodejs": ("nodejs", "javascript", "js", "node", "mjs"),
    "bash": ("bash", "sh", "shell", "zsh"),
    "go": ("go", "golang"),
    "rust": ("rust", "rs"),
    "perl": ("perl", "pl"),
    "ruby": ("ruby", "rb"),
}
"""How blocks of a language are marked, if not by its name."""
_NO_CODE = frozenset(
    (
        *("text", "txt", "plain", "plaintext", "output", "out", "stdout", "stderr", "console", "terminal", "result"),
        *("results", "input", "stdin", "log", "logs", "markdown", "md", "latex", "math", "diff", "example", "json"),
        *("yaml", "csv", "traceback", "error", "none"),
    )
)
"""Marks of blocks that show what a program reads or prints, or that are prose."""
_LANGUAGES = frozenset(("java", "c", "csharp", "php", "kotlin", *(tag for tags in _TAGS.values() for tag in tags)))
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
_MORE_INDENT = 3
"""Spaces by which the closing fence may be indented more than the opening one: four make it a line of the code."""


@dataclass(slots=True)
class _Block:
    tag: str
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip()


def last_code_block(text: str, language: str | None = None) -> str | None:
    """The last fenced block of a text that is code; None if it has none. A block that was cut off counts.

    Args:
        text: what the model wrote.
        language: the last block marked as this language that can be a program in it, else the last unmarked one that
            can, else one with another mark. Blocks that cannot (values, a session, a usage line, what does not parse)
            count only where no other is left, in the same order, and never where they are marked as an output or as
            prose. None: the last block, whatever its mark is.
    """
    blocks = _blocks(text)
    blocks = [block for block in blocks if block.text.strip()] or blocks  # the last may be cut off at its beginning
    if language is None:
        return blocks[-1].text if blocks else None
    tags = _TAGS.get(language, (language.lower(),))
    ranked = []
    for place, block in enumerate(blocks):
        marked = block.tag in tags
        if marked or block.tag not in _NO_CODE:
            program = (marked or block.tag not in _LANGUAGES) and _may_run(block.text, language)
            ranked.append((program, marked, not block.tag, place))
    return blocks[max(ranked)[-1]].text if ranked else None


def without_fence(code: str) -> str:
    """Code that was given as one fenced block, without its fence; other code as it is."""
    lines = code.strip().splitlines()
    if len(lines) < 2 or not _OPENING.fullmatch(lines[0]) or lines[-1].strip().strip("`~"):
        return code
    blocks = _blocks(code.strip("\r\n"))
    return blocks[0].text if len(blocks) == 1 else code


def _blocks(text: str) -> list[_Block]:
    found: list[_Block] = []
    opening: re.Match[str] | None = None
    for line in re.split(r"\r\n|\r|\n", text):
        if opening is None:
            opening = _opening(line)
            if opening is not None:
                word = _WORD.search(opening["info"])
                found.append(_Block(word[0].lower() if word else "", []))
            continue
        if line.strip() in _SECTION_ENDS:
            opening = None
            continue
        inner = _without_lead(line, opening["lead"])
        before, closed = _before_closing(inner, opening["fence"])
        if before is not None:
            found[-1].lines.append(before)
        if closed:
            opening = None
    return found


def _opening(line: str) -> re.Match[str] | None:
    found = _OPENING.fullmatch(line)
    if found is not None or "```" not in line:
        return found
    found = _BEHIND_TEXT.fullmatch(line)
    if found is None:
        return None
    info = found["info"].lower()
    introduced = found["text"].rstrip(" \t*_").endswith(":") and (not info or info in _NO_CODE)
    return found if introduced or info in _LANGUAGES else None


def _without_lead(line: str, lead: str) -> str:
    """A line of a block without the indentation, or the quote marks, of its opening fence."""
    if ">" in lead:  # "> ```" is followed by "> code"
        return re.sub(r"^[ \t]*> ?", "", line)
    width = len(lead.expandtabs(4))  # "  - ```" is followed by "    code"
    spaces = len(line) - len(line.lstrip(" \t"))
    return line[min(spaces, width) :] if "\t" not in lead else line[min(spaces, len(lead)) :]


def _before_closing(line: str, fence: str) -> tuple[str | None, bool]:
    """What a line of a block adds to it (None: nothing), and whether the block ends there."""
    if (tags := _CLOSING_TAGS.search(line)) and line[: tags.start()].rstrip().endswith(fence):
        line = line[: tags.start()]  # ```</answer>
    if (prose := _CLOSING_PROSE.fullmatch(line)) and prose[1].lstrip().startswith(fence):
        line = prose[1]  # ``` It prints 42.
    bare = line.strip()
    long = len(bare) >= len(fence) and not bare.strip(fence[0])
    if long:
        indent = len(line) - len(line.lstrip())
        return (None, True) if indent <= _MORE_INDENT else (line, False)
    # print(1)```: the closing fence behind the code. A line that opens with a fence is one of a text in the code.
    end = line.rstrip()
    if end.endswith(fence) and fence not in end[: -len(fence)]:
        return end[: -len(fence)], True
    return line, False


def _may_run(code: str, language: str) -> bool:
    """Whether a text can be a program: not `[1, 2]`, `yes`, `>>> f(1)`, nor, as Python, a use of what it lacks."""
    if language != "python":
        return re.match(r"\s*(?:>>>|[$>]) |[^a-zA-Z]*$", code) is None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    parts = list(ast.walk(tree))
    if any(isinstance(part, _DEFINITIONS) for part in parts):
        return True
    names = [part for part in parts if isinstance(part, ast.Name)]
    bound = {name.id for name in names if isinstance(name.ctx, ast.Store)} | vars(builtins).keys()
    bound.update(str(getattr(part, key)) for part in parts for key in ("arg", "name", "rest") if hasattr(part, key))
    acts = any(isinstance(part, ast.Call | ast.Await | ast.stmt) and not isinstance(part, ast.Expr) for part in parts)
    return acts and all(name.id in bound for name in names)
