"""Checks of bash programs: right ones pass, and wrong ones cannot pass by any trick."""

from __future__ import annotations

import pytest
from checks import must_not_pass, must_pass
from sandbox_service import Server

RIGHT = [
    ("f() { echo 1; }", '[ "$(f)" = 1 ]'),
    ("f() { echo 1; }", "f | grep -q 1"),
    ("f() { x=$((x+$1)); }; x=3; a=(1 'b c')", 'f 4; [ "$x" = 7 ] && [ "${a[1]}" = "b c" ]'),
    ("f() { tr a b; return 3; }", 'r=$(echo "a a" | f); [ $? = 3 ] && [ "$r" = "b b" ]'),
    ('f() { echo "$#:$1:$2"; }', '[ "$(f "a b" "")" = "2:a b:" ]'),
    (
        "f() { status=$1; words=(a b); }; name=n; words=(); item=i; place=p; text=t; kind=k; status=0; input=x; line=l",
        (
            'f 5; [ "$name$item$place$text$kind$input$line" = niptkxl ] && [ "$status" = 5 ] && '
            '[ "${words[*]}" = "a b" ]'
        ),
    ),
]
WRONG = [
    ("f() { echo 1; }", '[ "$(f)" = 2 ]'),
    ("f() { echo 1; }", "f | grep -q 2"),
    ("exit 0", "true"),
    ("f() { exit 0; }", "! f"),
    ("f() { exit 0; }", '[ -z "$(f)" ]'),
    ("test() { return 0; }; grep() { return 0; }; function [ { return 0; }; f() { echo 1; }", '[ "$(f)" = 2 ]'),
    ("grep() { return 0; }; f() { echo 1; }", "f | grep -q 2"),
    ("f() { echo 1; }\ncat <<X", '[ "$(f)" = 1 ]'),
    ("trap 'exit 0' EXIT; f() { kill -9 $$; }", '[ "$(f)" = "" ]'),
    ("trap 'exit 0' EXIT ERR; enable -n [; alias [=true; shopt -s expand_aliases; f() { echo 1; }", '[ "$(f)" = 2 ]'),
    ('cat "$0" /proc/$$/cmdline >&2; history; f() { echo 1; }', '[ "$(f)" = 2 ]'),
    ("PATH=/nowhere; f() { echo 1; }", '[ "$(f)" = 2 ]'),
    ("printf 'end\\nend\\n0 =Mg==\\n' >&3; f() { echo 1; }", '[ "$(f)" = 3 ]'),
    (
        (
            "printf 'ready\\n' >&3; while read -r -u 3 x; do printf 'function f;kill\\ntext PATH "
            "=Lw==\\ntext f[$(exit)] =Lw==\\nend\\n' >&3; done; f() { echo 1; }"
        ),
        '[ "$(f)" = 3 ]',
    ),
]


@pytest.mark.parametrize(("program", "check"), RIGHT)
def test_a_right_program_passes(quick: Server, program: str, check: str) -> None:
    must_pass(quick, "bash", program, check)


@pytest.mark.parametrize(("program", "check"), WRONG)
def test_a_wrong_program_does_not_pass(quick: Server, program: str, check: str) -> None:
    must_not_pass(quick, "bash", program, check)
