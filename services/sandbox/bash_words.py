"""Reads the words of a bash check, and writes what is expanded in them so that it is only a value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Mode = Literal["plain", "words", "pattern", "integer"]
"""What bash makes of a word: nothing, arguments that are compared, a pattern, arithmetic."""
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"\d[\w#@]*")
_CHANGED = re.compile(r"\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))")
_SPECIAL = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_ESCAPED = re.compile(r"\\([`$\\])")
_BACKTICKS = re.compile(r"`((?:\\.|[^`\\])*)`", re.DOTALL)
_ANSI = re.compile(r"\$'(?:\\.|[^'\\])*'", re.DOTALL)
_ENDS = " \t\n;&|()<>"


@dataclass(slots=True)
class Word:
    """A word as it is written, and what is known of its value."""

    text: str
    literal: str | None
    """Its value if nothing is expanded in it."""
    risky: bool
    """Whether the program may have written part of it."""


class WordReader:
    """Reads a check once and writes it anew.

    Args:
        text: the check.
        own: variables that hold text of the check.
        functions: those that the check defines.
        strict: refuse; the first reading only collects names.
    """

    def __init__(self, text: str, own: frozenset[str], functions: frozenset[str], *, strict: bool) -> None:
        self._text, self._own, self._known, self._strict = text, own, functions, strict
        self._at = 0
        self._documents: list[tuple[str, bool]] = []
        self._arguments: list[str | None] = []
        """Of the command that is read: those that are text, and None for others."""
        self.plain: set[str] = set()
        self.other: set[str] = set()
        self.functions: set[str] = set()

    def _starts(self, *texts: str) -> bool:
        return self._text.startswith(texts, self._at)

    def _take(self, size: int) -> str:
        taken = self._text[self._at : self._at + size]
        if len(taken) < size:
            raise IndexError
        self._at += size
        return taken

    def _must(self, mark: str) -> str:
        if not self._starts(mark):
            raise IndexError
        return self._take(len(mark))

    def _spaces(self, signs: str = " \t") -> str:
        start = self._at
        while self._at < len(self._text):
            if self._text[self._at] in signs:
                self._at += 1
            elif self._starts("\\\n"):
                self._at += 2
            else:
                break
        return self._text[start : self._at]

    def _refuse(self, what: str, wanted: str) -> None:
        if self._strict:
            raise ValueError(
                f"got the assert {what!r:.200}, in which bash reads what the program prints as code; wanted {wanted}"
            )

    def _commands(self, stop: str) -> str:
        raise NotImplementedError

    def _word(self, mode: Mode, *, in_condition: bool = False) -> Word:
        out, literal, names = "", "", list[str]()
        risky, known, depth, start = False, True, 0, self._at
        while self._at < len(self._text):
            sign = self._text[self._at]
            if sign in "()" and in_condition and mode == "pattern":  # a regular expression, an extended pattern
                depth += 1 if sign == "(" else -1
                if depth < 0:
                    break
            elif self._starts("<(", ">("):
                out += self._take(2) + self._commands(")") + self._must(")")
                risky, known = True, False
                continue
            elif sign in _ENDS and not (depth and sign in "|&<>"):
                break
            if sign in "'\\":
                size = 2 if sign == "\\" else self._text.index("'", self._at + 1) + 1 - self._at
                out += (piece := self._take(min(size, len(self._text) - self._at)))
                literal += piece[1:] if sign == "\\" else piece[1:-1]
            elif sign == '"':
                text, value, danger = self._quoted(mode)
                out, literal, risky, known = (
                    out + text,
                    literal + (value or ""),
                    risky or danger,
                    known and value is not None,
                )
            elif sign in "$`":
                text, danger = self._expansion(mode, quoted=False)
                out, risky, known = out + text, risky or danger, known and text == "$"
            elif mode == "integer" and (found := _NUMBER.match(self._text, self._at)):
                out += self._take(len(found[0]))
            elif mode == "integer" and (found := IDENTIFIER.match(self._text, self._at)):
                names.append(found[0])
                out += self._take(len(found[0]))
            else:
                literal += sign
                out += self._take(1)
        if self._at == start:
            raise IndexError if self._at >= len(self._text) or self._text[self._at] in "()" else ValueError(self._text)
        return Word(self._checked(names) + out, literal if known and not names else None, risky)

    def _checked(self, names: list[str]) -> str:
        """What makes sure that variables of an arithmetic expression are integers."""
        asked = [name for name in dict.fromkeys(names) if name not in self._own]
        return f"$(__ints {' '.join(asked)})" if asked else ""

    def _quoted(self, mode: Mode) -> tuple[str, str | None, bool]:
        out, literal, known, risky = self._take(1), "", True, False
        while not self._starts('"'):
            if self._starts("\\"):
                out += (piece := self._take(2))
                literal += piece[1:]
            elif self._starts("$", "`"):
                text, danger = self._expansion(mode, quoted=True)
                out, risky, known = out + text, risky or danger, False
            else:
                out += (piece := self._take(1))
                literal += piece
        return out + self._take(1), literal if known else None, risky

    def _expansion(self, mode: Mode, *, quoted: bool) -> tuple[str, bool]:
        """What a `$` or a backtick begins, as a value only; and whether the program may have written it."""
        if self._starts("`"):
            inner = _BACKTICKS.match(self._text, self._at)
            if inner is None:
                raise IndexError
            self._at += len(inner[0])
            text = "$(" + self._nested(_ESCAPED.sub(r"\1", inner[1])) + ")"
        elif self._starts("$(("):
            return self._take(3) + self._arithmetic("))") + self._must("))"), False
        elif self._starts("$("):
            text = self._take(2) + self._commands(")") + self._must(")")
        elif self._starts("${"):
            text, risky = self._parameter()
            if not risky:
                return text, False
        elif self._starts("$'") and not quoted:
            found = _ANSI.match(self._text, self._at)
            return self._take(len(found[0]) if found else 2), False
        else:
            found = _SPECIAL.match(self._text, self._at + 1)
            text = self._take(1 + (len(found[0]) if found else 0))
            if found is None or found[0] in "#?$!-" or found[0] in self._own:
                return text, False
        if mode == "integer":
            return f'$(__int "{text}")', True
        if quoted or mode == "plain":
            return text, True
        return f'"$(__one "{text}")"' if mode == "words" else f'"{text}"', True

    def _nested(self, text: str) -> str:
        inner = type(self)(text, self._own, self._known, strict=self._strict)
        inner.plain, inner.other, inner.functions = self.plain, self.other, self.functions
        return inner._commands("")

    def _parameter(self) -> tuple[str, bool]:
        """`${x}` and its kin."""
        out = self._take(2)
        if self._starts("#") and not self._starts("#}"):
            while not self._starts("}"):
                out += self._take(1)
            return out + self._take(1), False
        indirect = self._starts("!")
        out += self._take(1) if indirect else ""
        found = _SPECIAL.match(self._text, self._at)
        if found is None:
            raise IndexError
        out += self._take(len(found[0]))
        risky = found[0] not in self._own
        if self._starts("["):
            begin = self._take(1)
            index = self._take(1) if self._starts("@]", "*]") else self._arithmetic("]")
            out += begin + index + self._must("]")
            indirect = indirect and index not in "@*"
        if indirect and risky and not self._starts("@}", "*}"):
            self._refuse(f"{out}}}", "the name of the variable")
        if self._starts("@P"):
            self._refuse(f"{out}@P}}", "`$x`")
        if self._starts(":") and not self._starts(":-", ":+", ":=", ":?"):
            out += self._take(1) + self._arithmetic("}")
        mode: Mode = "pattern" if self._starts("#", "%", "/", "^", ",") else "plain"
        while not self._starts("}"):
            if self._starts("\\"):
                out += self._take(2)
            elif self._starts('"'):
                text, _, danger = self._quoted("plain")
                out, risky = out + text, risky or danger
            elif self._starts("$", "`"):
                text, danger = self._expansion(mode, quoted=False)
                out, risky = out + text, risky or danger
            else:
                out += self._take(1)
        return out + self._take(1), risky

    def _arithmetic(self, end: str) -> str:
        """An arithmetic expression up to its end, or several with `;` between them."""
        out, part, names, depth = "", "", list[str](), 0
        while depth or not self._starts(end):
            if self._starts("$", "`"):
                part += self._expansion("integer", quoted=True)[0]
            elif found := _NUMBER.match(self._text, self._at):
                part += self._take(len(found[0]))
            elif found := IDENTIFIER.match(self._text, self._at):
                names.append(found[0])
                if _CHANGED.match(self._text, found.end()) or part.endswith(("++", "--")):
                    self.other.add(found[0])
                part += self._take(len(found[0]))
            elif self._starts(";"):
                out, part, names = out + self._checked(names) + part + self._take(1), "", []
            else:
                depth += self._starts("(", "[") - self._starts(")", "]")
                part += self._take(1)
        return out + self._checked(names) + part
