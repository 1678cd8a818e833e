r"""Makes a bash check one that a program's output cannot change.

Bash reads the value of an unquoted `$(f)` again: as words (`[ $(f) = 2 ]`), as a pattern (`[[ 2 == $(f) ]]`), as
arithmetic (`(( $(f) == 2 ))`), as a command. A program that prints `2 = 2 -o x`, `*` or `x=2` there passes whatever it
should print. So such places get the value in a form that is only a value:

    [ $(f) = 2 ]        [ "$(__one "$(f)")" = 2 ]             one word
    [[ 2 == $(f) ]]     [[ 2 == "$(f)" ]]                     no pattern
    (( $(f) == x ))     (( $(__ints x) $(__int "$(f)") == x ))    integers, else the check fails

Where the value would be code (`eval "$(f)"`), the check is refused. Variables that the check sets to plain text are its
own and stay as they are. `check.sh` has the functions.
"""

from __future__ import annotations

import re

from agentrl.services.sandbox.bash_words import IDENTIFIER, Mode, WordReader

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?\+?=")
_BEFORE_COMMAND = frozenset(
    (
        *("if", "then", "elif", "else", "while", "until", "do", "done", "fi", "esac", "!", "time", "{", "}"),
        *("command", "builtin", "exec", "coproc"),
    )
)
_ESAC, _IN = re.compile(r"esac(?!\w)"), re.compile(r"in(?!\w)")
_COMPARES = frozenset(("[", "test", "expr"))
_RUNS_TEXT = frozenset(("eval", "source", ".", "trap"))
_SETS = frozenset(
    ("read", "mapfile", "readarray", "getopts", "printf", "declare", "typeset", "local", "export", "readonly", "unset")
)
_ARITHMETIC = frozenset(("-eq", "-ne", "-lt", "-le", "-gt", "-ge"))
_PATTERNS = frozenset(("=", "==", "!=", "=~"))


def guard(check: str) -> tuple[str, frozenset[str]]:
    """A check that cannot be changed by what it gets, and the names of the variables that it sets itself.

    Raises:
        ValueError: it would run what the program prints, or cannot be read.
    """
    first = _Reader(check, frozenset(), frozenset(), strict=False)
    first.whole()
    second = _Reader(check, frozenset(first.plain - first.other), frozenset(first.functions), strict=True)
    return second.whole(), frozenset(first.plain | first.other)


class _Reader(WordReader):
    """Reads the commands of a check."""

    def whole(self) -> str:
        """All of the check.

        Raises:
            ValueError: see `guard`.
        """
        try:
            return self._commands("")
        except (IndexError, RecursionError):
            raise ValueError(f"got the assert {self._text!r:.200}, wanted code that bash can read") from None

    def _commands(self, stop: str) -> str:
        """Commands up to `)`, up to the end of a branch of `case` (`;;`), or all."""
        out: list[str] = []
        name: str | None = None
        while True:
            out.append(self._spaces())
            if self._at >= len(self._text):
                if stop == ")":
                    raise IndexError
                return "".join(out)
            sign = self._text[self._at]
            if sign == "#":
                out.append(self._take((self._text + "\n").index("\n", self._at) - self._at))
            elif sign == "\n":
                out.append(self._take(1) + self._bodies())
                name = None
            elif sign == stop or (stop == ";;" and self._starts(";;", ";&")):
                return "".join(out)
            elif sign in ";&|" and not self._starts("&>"):
                out.append(self._take(1))
                name = None
            elif sign == "(":
                out.append(self._parenthesis(name))
                name = None
            elif sign in "<>&" and not self._starts("<(", ">("):
                out.append(self._redirection())
            elif name is None:
                if stop == ";;" and _ESAC.match(self._text, self._at):
                    return "".join(out)
                piece, name = self._first()
                out.append(piece)
            else:
                out.append(self._argument(name))

    def _parenthesis(self, name: str | None) -> str:
        if name is not None:  # f() { ...
            self.functions.add(name)
            return self._take(1) + self._spaces() + self._must(")")
        if self._starts("(("):
            return self._take(2) + self._arithmetic("))") + self._must("))")
        return self._take(1) + self._commands(")") + self._must(")")

    def _redirection(self) -> str:
        if self._starts("<<") and not self._starts("<<<"):
            mark = self._take(3 if self._starts("<<-") else 2) + self._spaces()
            start = self._at
            self._word("plain")
            raw = self._text[start : self._at]
            self._documents.append((re.sub(r"[\\'\"]", "", raw), "-" in mark))
            return mark + raw
        mark = ""
        while self._at < len(self._text) and self._text[self._at] in "<>&|" and not self._starts("<(", ">("):
            mark += self._take(1)
        return mark + self._spaces() + self._word("plain").text

    def _bodies(self) -> str:
        start = self._at
        for end, tabs in self._documents:
            for line in self._text[self._at :].splitlines(keepends=True):
                self._at += len(line)
                if (line.lstrip("\t") if tabs else line).rstrip("\n") == end:
                    break
        self._documents = []
        return self._text[start : self._at]

    def _first(self) -> tuple[str, str | None]:
        """The next word where a command may begin; and the command, if it is one."""
        found = _ASSIGNMENT.match(self._text, self._at)
        if found is not None:
            return self._assignment(found), None
        word = self._word("plain")
        text, self._arguments = word.literal, []
        if text in _BEFORE_COMMAND:
            return word.text, None
        if text == "[[":
            return word.text + self._condition(), None
        if text == "case":
            return word.text + self._case(), None
        if text in ("for", "select"):
            return word.text + self._loop(), None
        if text == "function":
            spaces, named = self._spaces(), self._word("plain")
            self.functions.add(named.text)
            return word.text + spaces + named.text, named.text if self._starts("(") else None
        if word.risky:
            self._refuse(word.text, '`[ "$(f)" = true ]`')
        return word.text, text or word.text

    def _assignment(self, found: re.Match[str]) -> str:
        begin = self._take(len(found[0]))
        if self._starts("("):
            begin += self._take(1)
            risky = False
            while True:
                begin += self._spaces(" \t\n")
                if self._starts(")"):
                    break
                item = self._word("plain")
                begin, risky = begin + item.text, risky or item.risky
            begin += self._take(1)
        else:
            value = self._word("plain")
            begin, risky = begin + value.text, value.risky
        (self.other if risky else self.plain).add(found[1])
        return begin

    def _argument(self, name: str) -> str:
        mode: Mode = "plain"
        if name in _COMPARES or name in self._known:
            mode = "words"
        elif name == "let":
            mode = "integer"
        word = self._word(mode)
        options = all(given is not None and given.startswith("-") for given in self._arguments)
        if word.risky and (name in _RUNS_TEXT or (name in ("bash", "sh") and "-c" in self._arguments)):
            self._refuse(f"{name} {word.text}", '`[ "$(f)" = 2 ]`')
        if word.risky and name == "grep" and options:
            self._refuse(f"{name} {word.text}", '`[ "$(f)" = 2 ]`, or the output as what is searched: `f | grep -q 2`')
        self._arguments.append(word.literal)
        if name in _SETS:
            if name in ("declare", "typeset", "local") and re.fullmatch(r"-\w*[in]\w*", word.literal or ""):
                self._refuse(f"{name} {word.text}", f"`{name}` without {word.text}")
            found = IDENTIFIER.match(word.text)
            if found is not None:
                (self.other if word.risky or "=" not in word.text else self.plain).add(found[0])
        if name in ("[", "test") and word.literal == "-v":
            spaces, variable = self._spaces(), self._word("plain")
            if variable.risky:
                self._refuse(f"{name} -v {variable.text}", "the name of a variable after -v")
            return word.text + spaces + variable.text
        return word.text

    def _loop(self) -> str:
        out = self._spaces()
        if self._starts("(("):
            return out + self._take(2) + self._arithmetic("))") + self._must("))")
        name = self._word("plain").text
        out += name + self._spaces(" \t\n")
        if not _IN.match(self._text, self._at):
            self.other.add(name)
            return out
        out += self._take(2)
        risky = False
        while True:
            out += self._spaces()
            if self._starts(";", "\n"):
                (self.other if risky else self.plain).add(name)
                return out
            word = self._word("plain")
            out, risky = out + word.text, risky or word.risky

    def _case(self) -> str:
        out = self._spaces() + self._word("plain").text + self._spaces(" \t\n") + self._must("in")
        while True:
            out += self._spaces(" \t\n")
            if _ESAC.match(self._text, self._at):
                return out + self._take(4)
            if self._starts("("):
                out += self._take(1)
            while not self._starts(")"):
                out += self._spaces() or (self._take(1) if self._starts("|") else self._word("pattern").text)
            out += self._take(1) + self._commands(";;")
            while self._starts(";", "&"):
                out += self._take(1)

    def _condition(self) -> str:
        """What stands in `[[ … ]]`, with its end."""
        out: list[str] = []
        before: tuple[int, int] | None = None
        mode: Mode = "plain"
        while True:
            spaces = self._spaces(" \t\n")
            out.append(spaces)
            if self._starts("]]"):
                return "".join(out) + self._take(2)
            if self._text[self._at] in "&|<>;" or (self._text[self._at] in "()" and mode == "plain"):
                out.append(self._take(1))
                continue
            start = self._at
            word = self._word(mode, in_condition=True)
            if before is not None and word.literal in _ARITHMETIC:
                place, end = before[0], self._at
                self._at = before[1]
                out[place] = self._word("integer", in_condition=True).text
                self._at, mode = end, "integer"
            elif before is not None and word.literal in _PATTERNS:
                mode = "pattern"
            elif word.literal == "-v":
                mode = "plain"
                if "$" in self._text[self._at : self._at + 4]:
                    self._refuse("[[ -v $x ]]", "the name of a variable after -v")
            else:
                mode, before = "plain", (len(out), start)
            out.append(word.text)
