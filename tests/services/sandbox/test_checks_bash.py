"""Checks of bash programs: right ones pass, and wrong ones cannot pass by any trick."""

from __future__ import annotations

import re

import pytest
from checks import must_not_pass, must_pass
from sandbox_service import Server, needs_language

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
    ("f() { echo 2; }", "[ $(f) = 2 ] && [ `f` -eq 2 ] && test $(f) -le 2 && ! [ $(f) -ne 2 ]"),
    ("f() { echo ' 2 '; }", "[ $(f) = 2 ]"),
    (
        "f() { echo 2; }",
        "[[ $(f) -eq 2 ]] && [[ 2 == $(f) && 1 -lt $(f) ]] && (( $(f) == 2 )) && [ $(( $(f) + 1 )) = 3 ]",
    ),
    ("f() { echo $(($1 * 2)); }", "for ((i = 0; i < 3; i++)); do (( $(f $i) == i * 2 )) || exit 1; done"),
    (
        "f() { echo $(($1 * 2)); }",
        "for t in '1 2' '2 4'; do set -- $t; r=$(f $1); [ $r = $2 ] && (( r == $2 )) || exit 1; done",
    ),
    ("f() { echo a.txt; }", "pat='*.txt'; [[ $(f) == $pat && $(f) =~ ^(a|b)\\.txt$ && $(f) == @(a|b).txt ]]"),
    ('f() { echo "$1"; }', "case $(f 'a b') in 'a b') ;; *) exit 1 ;; esac"),
    (
        'f() { echo "$@"; }',
        'candidate() {\n  f "$@"\n}\nset -e\nrun_test() {\n  [[ $(candidate "1 2") = "1 2" ]]\n}\nrun_test',
    ),
    (
        "f() { echo out; echo err >&2; echo more; }",
        (
            '[ "$(f 2>&1)" = $\'out\\nerr\\nmore\' ] && [ "$(f 2>&1 >/dev/null)" = err ] && '
            "[ \"$(f 2>/dev/null)\" = $'out\\nmore' ]"
        ),
    ),
    ("f() { echo err >&2; return 2; }", "f 2>errors; [ $? -eq 2 ] && grep -q err errors"),
    ("a=(5 6); x=7", "(( a[0] == 5 && x == 7 )) && [ ${a[1]} -eq 6 ] && [ ${#a[@]} = 2 ]"),
    ("f() { echo 3; }", "diff <(f) - <<END\n3\nEND"),
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
    ("f() { echo '2 = 2 -o x'; }", "[ $(f) = 2 ]"),
    ("f() { echo '5 = 5 -o 1'; }", "[ `f` = 2 ]"),
    ("f() { echo '2 -eq 2 -o 1'; }", "test $(f) -eq 2"),
    ("f() { echo 'x=2'; }", "(( $(f) == 2 ))"),
    ("f() { echo 'x=2'; }", "[[ $(f) -eq 2 ]]"),
    ("f() { echo 'x=2'; }", '[[ "$(f)" -eq 2 ]]'),
    ("f() { echo 'want'; }", "want=2; [[ $(f) -eq $want ]]"),
    ("f() { echo 'want'; }", "want=2; r=$(f); (( r == want ))"),
    ("f() { echo 'x[$(kill -9 $PPID)]'; }", "! (( $(f) == 2 ))"),
    ("f() { echo '*'; }", "[[ 2 == $(f) ]]"),
    ("f() { echo '.*'; }", "[[ 2 =~ $(f) ]]"),
    ("f() { echo '*'; }", "r=$(f); [[ 2 == $r ]]"),
    ("f() { echo '*'; }", "case 2 in $(f)) ;; *) exit 1 ;; esac"),
    ("f() { echo '2 2'; }", 'same() { [ "$1" = "$2" ]; }; same $(f) 3'),
    ("f() { echo 'r=2'; }", "let r=$(f); [ $r = 2 ]"),
    ("f() { :; }; want=z; x=z", 'want=2; f; [ "$x" = "$want" ]'),
    ("r='x=2'", "(( r == 2 ))"),
    ("f() { echo '2 = 2 #'; }", "expr $(f) = 3"),
]


@pytest.mark.parametrize(("program", "check"), RIGHT)
def test_a_right_program_passes(quick: Server, program: str, check: str) -> None:
    must_pass(quick, "bash", program, check)


@pytest.mark.parametrize(("program", "check"), WRONG)
def test_a_wrong_program_does_not_pass(quick: Server, program: str, check: str) -> None:
    must_not_pass(quick, "bash", program, check)


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ('eval "$(f)"', r'got the assert .* reads what the program prints as code; wanted `\[ "\$\(f\)" = 2 \]`'),
        ("$(f) && true", r'wanted `\[ "\$\(f\)" = true \]`'),
        ("if `f`; then true; fi", "as code"),
        ("declare -i r=$(f); [ $r = 2 ]", "`declare` without -i"),
        ('grep -q "$(f)" <<< 2', r"`f \| grep -q 2`"),
        ('r=$(f); [ "${!r}" = 2 ]', "the name of the variable"),
        ("f(", "wanted code that bash can read"),
    ],
)
def test_an_assert_that_runs_what_a_program_prints_is_refused(quick: Server, check: str, says: str) -> None:
    needs_language("bash")
    body = {"code": "f() { echo 2; }", "tests": [{"input": "", "assert": check}], "language": "bash"}
    answer = quick.http.post("/judge", json=body)
    assert answer.status_code == 422
    assert re.search(r"tests\.0\.assert: .*" + says, answer.json()["detail"])
