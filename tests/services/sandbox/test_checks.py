"""Checks of programs: right ones pass, and wrong ones cannot pass by any trick.

The program and its check are in two sandboxes; all that a program can do is answer calls.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sandbox_service import SERVED, Server, needs_language

RIGHT = [
    (
        "python",
        "class A(list):\n    def top(self): return self[-1]\ndef f(x): return A([x])",
        "assert f(2) == [2] != f(3)",
    ),
    (
        "python",
        "class A(dict):\n    def put(self, k): self[k] = 1",
        "a = A()\na.put(3)\nassert a == {3: 1} and len(a) == 1",
    ),
    ("python", "def f(): return 1", "assert f() == 1"),
    (
        "python",
        "def g(k): yield from range(k)\ndef f(h,l):\n l.append(1); return [h(x) for x in l]",
        "l=[3]\nassert f(lambda x: x+1, l) == [4,2]\nassert l == [3,1]\nassert list(g(3)) == [0,1,2]",
    ),
    (
        "python",
        (
            "class V:\n def __init__(s,x): s.x=x\n def __eq__(s,o): return s.x==o.x\n def __mul__(s,k): "
            "return V(s.x*k)\n def __len__(s): return 7\n def __iter__(s): return iter([1,2])"
        ),
        (
            "v=V(2)\nassert v*2 == V(4)\nassert v.x==2\nassert len(v)==7\nassert 2 in v and 3 not in v\n"
            "assert isinstance(v, V)\nv.x=9\nassert v == V(9) and v != V(2)"
        ),
    ),
    (
        "python",
        "class E(ValueError): pass\ndef f():\n raise E('x',3)",
        "try:\n f()\nexcept E as e:\n  assert e.args==('x',3)\nelse:\n assert False\ntry: f()\nexcept ValueError: pass",
    ),
    (
        "python",
        "async def f(x):\n import asyncio; await asyncio.sleep(0); return x",
        "import asyncio\nassert asyncio.run(f(3)) == 3",
    ),
    (
        "python",
        "def f(): print('hi')",
        "import io, contextlib\ns=io.StringIO()\nwith contextlib.redirect_stdout(s): f()\nassert s.getvalue()=='hi\\n'",
    ),
    ("python", "def sum(a,b): return 6", "assert sum(10,15)==6"),
    (
        "python",
        "import collections\nP=collections.namedtuple('P','x y')\ndef f(): return P(1,2)",
        "assert f()==(1,2) and f().y==2 and P(1,2)==f()",
    ),
    (
        "python",
        "def f(x): return x",
        (
            "x={1:{2,3}}\nassert f(x)==x and f(x) is x\nimport datetime, fractions\nassert "
            "f(datetime.date(2020,1,1))==datetime.date(2020,1,1)\nassert f(fractions.Fraction(1,3))*3==1\n"
            "assert f(2**20000)==2**20000\nassert f('\\ud800')=='\\ud800'"
        ),
    ),
    ("python", "import numpy as np\ndef f(x): return np.array(x)*2", "assert (f([1,2])==np.array([2,4])).all()"),
    (
        "python",
        "def f(): return 2",
        "from main import f\nfrom solution import f as g\nassert f()==g()==2\ndef check(c):\n assert c()==2\ncheck(f)",
    ),
    (
        "python",
        "class Node:\n def __init__(s,v,n=None): s.v=v;s.n=n\ndef f(x): return x.val+x.nxt.val",
        "class L:\n def __init__(s,v,n=None): s.val=v;s.nxt=n\nassert f(L(1,L(2)))==3",
    ),
    (
        "python",
        (
            "import pickle\nclass P: pass\ndef f(n): return n + n\ndef g(): return pickle.loads(pickle.dumps(P()))"
            "\nif __name__ == '__main__': print(f(int(input())))"
        ),
        "assert f(1) == 2\nif __name__ == '__main__': assert isinstance(g(), P)",
    ),
    ("python", "import math\ndef f(x): return math.sqrt(x)", "assert math.isclose(f(4), 2)"),
    ("python", "def queue(x): return x\ndef f(x): return x", "assert queue(1) == f(1) == 1"),
    ("python", "class calendar:\n days = 7\ndef f(x): return x", "assert calendar.days == f(7)"),
    (
        "python",
        "class Counter:\n def __init__(s, x): s.x = x\ndef f(c): return c.x + 1",
        "assert f(Counter(3)) == 4",
    ),
    ("bash", "f() { echo 1; }", '[ "$(f)" = 1 ]'),
    ("bash", "f() { echo 1; }", "f | grep -q 1"),
    ("bash", "f() { x=$((x+$1)); }; x=3; a=(1 'b c')", 'f 4; [ "$x" = 7 ] && [ "${a[1]}" = "b c" ]'),
    ("bash", "f() { tr a b; return 3; }", 'r=$(echo "a a" | f); [ $? = 3 ] && [ "$r" = "b b" ]'),
    ("bash", 'f() { echo "$#:$1:$2"; }', '[ "$(f "a b" "")" = "2:a b:" ]'),
    (
        "bash",
        "f() { status=$1; words=(a b); }; name=n; words=(); item=i; place=p; text=t; kind=k; status=0; input=x; line=l",
        (
            'f 5; [ "$name$item$place$text$kind$input$line" = niptkxl ] && [ "$status" = 5 ] && '
            '[ "${words[*]}" = "a b" ]'
        ),
    ),
    ("nodejs", "const f = () => 1", "require('assert')(f() === 1)"),
    ("nodejs", "const f = () => 1", "console.assert(f() === 1, 'f')"),
    (
        "nodejs",
        "const assert = require('assert'); const f = (l) => { l.push(1); return l }",
        "const l=[3]; assert.deepStrictEqual(f(l), [3,1]); assert.deepStrictEqual(l,[3,1]); assert.equal(f(l), l)",
    ),
    (
        "nodejs",
        (
            "class P { constructor(x) { this.x = x } add(k) { return new P(this.x + k) } "
            "*[Symbol.iterator]() { yield 1; yield 2 } }"
        ),
        (
            "const assert=require('assert'); const p = new P(2); assert(p instanceof P); "
            "assert.strictEqual(p.add(3).x, 5); assert.deepStrictEqual([...p],[1,2]); p.x = 7; "
            "assert.deepEqual(p, {x: 7})"
        ),
    ),
    (
        "nodejs",
        "const f = async (x) => { await null; if (x > 2) throw new TypeError('big'); return x + 1 }",
        (
            "const assert=require('assert'); (async () => { assert.equal(await f(1), 2); await "
            "assert.rejects(f(3), TypeError) })()"
        ),
    ),
    (
        "nodejs",
        "function f(g, l) { return l.map(g) }; module.exports = {f}",
        "const {f} = require('./main'); require('assert').deepStrictEqual(f((x) => x * 2, [1, 2]), [2, 4])",
    ),
    (
        "nodejs",
        "class E extends RangeError {}; const f = () => { throw new E('no') }",
        "const assert=require('assert'); assert.throws(() => f(), E); assert.throws(() => f(), /no/)",
    ),
    (
        "nodejs",
        "const f = () => new Map([[1, new Set([NaN, undefined, 5n, -0])]])",
        "require('assert').deepStrictEqual(f(), new Map([[1, new Set([NaN, undefined, 5n, -0])]]))",
    ),
    ("perl", "sub f { 1 }", "die unless f() == 1;"),
    (
        "perl",
        "use strict; use warnings; sub f { my $l = shift; push @$l, 4; return map { $_ * 2 } @$l }",
        "my $l=[1]; my @r = f($l); die unless \"@r\" eq '2 8' && \"@$l\" eq '1 4';",
    ),
    (
        "perl",
        "package P; sub new { bless {x => $_[1]}, $_[0] } sub x { $_[0]{x} } sub add { P->new($_[0]{x} + $_[1]) } 1;",
        "my $p = P->new(2); die unless $p->add(3)->x == 5; die if $p->x != 2;",
    ),
    ("perl", "use Test::More; sub f { 1 }", "is(f(), 1); done_testing();"),
    (
        "perl",
        "sub f { my ($g, @l) = @_; return { map { $_ => $g->($_) } @l } }",
        "my $h = f(sub { $_[0] . 'é' }, 'a'); die unless $h->{a} eq 'aé';",
    ),
]
TRUE = "staticmethod(lambda *a, **k: True)"
WRONG = [
    ("python", f"class math: isclose = {TRUE}\ndef f(x): return 1", "assert math.isclose(f(1), 2, rel_tol=0.001)"),
    ("python", f"class np: allclose = {TRUE}\ndef f(x): return 1", "assert np.allclose(f(1), 2)"),
    ("python", f"class operator: eq = {TRUE}\ndef f(x): return 1", "assert operator.eq(f(1), 2)"),
    ("python", "def isclose(*a, **k): return True\ndef f(x): return 1", "assert isclose(f(1), 2)"),
    ("python", "def deepcopy(x): return 2\ndef f(x): return x", "x = 1\nassert deepcopy(f(x)) == 2"),
    ("python", "def Counter(x): return 1\ndef f(x): return [x]", "assert Counter(f(1)) == Counter([2])"),
    ("python", "def f(): return 1", "assert f() == 2"),
    ("python", "import os; os._exit(0)", "assert f() == 2"),
    ("python", "raise SystemExit(0)", "assert True"),
    ("python", "1/0", "assert True"),
    ("python", "class P:\n def __eq__(s,o): return True\ndef f(): return P()", "assert f() == 2"),
    (
        "python",
        "class P:\n def __sub__(s,o): return 0\n __rsub__=__sub__\ndef f(): return P()",
        "assert abs(f()-2) < 1e-6",
    ),
    ("python", "from math import *\nisclose=lambda *a,**k: True\ndef f(): return 1", "assert isclose(f(), 2)"),
    ("python", "abs=lambda x: 0\nimport builtins; builtins.abs=abs\ndef f(x): return 5", "assert abs(f(1)-2)<1e-6"),
    ("bash", "f() { echo 1; }", '[ "$(f)" = 2 ]'),
    ("bash", "f() { echo 1; }", "f | grep -q 2"),
    ("bash", "exit 0", "true"),
    ("bash", "f() { exit 0; }", "! f"),
    ("bash", "f() { exit 0; }", '[ -z "$(f)" ]'),
    ("bash", "test() { return 0; }; grep() { return 0; }; function [ { return 0; }; f() { echo 1; }", '[ "$(f)" = 2 ]'),
    ("bash", "grep() { return 0; }; f() { echo 1; }", "f | grep -q 2"),
    ("bash", "f() { echo 1; }\ncat <<X", '[ "$(f)" = 1 ]'),
    ("bash", "trap 'exit 0' EXIT; f() { kill -9 $$; }", '[ "$(f)" = "" ]'),
    ("nodejs", "const f = () => 1", "require('assert')(f() === 2)"),
    ("nodejs", "const f = () => 1", "console.assert(f() === 2)"),
    ("nodejs", "console.assert = () => {}; const f = () => 1", "console.assert(f() === 2, 'f(%d)', 1)"),
    ("nodejs", "process.exit(0)", "require('assert')(true)"),
    ("nodejs", "const assert = {equal() {}, deepStrictEqual() {}}; const f = () => 1", "assert.equal(f(), 2)"),
    (
        "nodejs",
        "const f = async (x) => x",
        "const assert=require('assert'); (async () => { assert.equal(await f(1), 2) })()",
    ),
    (
        "nodejs",
        "const f = () => ({valueOf() { return 2 }, equals() { return true }})",
        "require('assert').deepStrictEqual(f(), 2)",
    ),
    (
        "nodejs",
        "JSON.stringify = () => '2'; Object.is = () => true; const f = () => process.exit(0)",
        "require('assert')(f() === 2)",
    ),
    ("perl", "sub f { 1 }", "die unless f() == 2;"),
    ("perl", "use Test::More; no warnings; sub is { 1 } sub f { 1 }", "is(f(), 2);"),
    ("perl", "exit 0;", "1;"),
    ("perl", "sub f { exit 0 }", "die if f();"),
    ("perl", "sub f { 1 }\n__END__", "die unless f() == 1;"),
    (
        "python",
        (
            "import inspect, sys, gc, os\nsource = open('main.py').read() + ' '.join(sys.argv) + "
            "str(os.environ) + str(gc.get_objects())\nprint(source, file=sys.stderr)\ndef f(x): return x"
        ),
        "assert f(1) == 2",
    ),
    (
        "python",
        "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): raise SystemExit(0)",
        "assert f(1) == 2",
    ),
    (
        "python",
        "import sys\nsys.excepthook = lambda *a: None\nsys.settrace(lambda *a: None)\ndef f(x): raise AssertionError",
        "assert f(1) == 2",
    ),
    (
        "python",
        (
            "import builtins\nbuiltins.AssertionError = KeyError\nbuiltins.isinstance = lambda *a: True\n"
            "def f(x): return x"
        ),
        "assert f(1) == 2",
    ),
    ("python", "import os\nif os.fork():\n    os._exit(0)\ndef f(x): return 2", "assert f(1) == 3"),
    (
        "python",
        'import json\njson.dumps = lambda *a, **k: \'["answer", "ok", 2, []]\'\ndef f(x): return 1',
        "assert f(1) == 3",
    ),
    ("python", "from unittest.mock import ANY\ndef f(x): return ANY", "assert f(1) == 2"),
    (
        "python",
        "class A(int):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(x): return A(7)",
        "assert f(1) == 2",
    ),
    (
        "python",
        "class A(list):\n    def __eq__(self, other): return True\ndef f(x): return A([7])",
        "assert f(1) == [2]",
    ),
    (
        "python",
        (
            "class A:\n    def __lt__(self, other): return True\n    __gt__ = __le__ = __ge__ = "
            "__contains__ = __lt__\ndef f(x): return A()"
        ),
        "assert f(1) < 2",
    ),
    ("python", "class A:\n    def __contains__(self, other): return True\ndef f(x): return A()", "assert 2 in f(1)"),
    (
        "python",
        (
            "class A:\n    def __sub__(self, o): return self\n    def __abs__(self): return 0\n    "
            "__float__ = __abs__\ndef f(x): return A()"
        ),
        "assert abs(f(1) - 2) < 1e-6",
    ),
    (
        "python",
        (
            "class A:\n    def __sub__(self, o): return self\n    def __getattr__(self, name): return 0\n"
            "def f(x): return A()"
        ),
        "assert (f(1) - 2).days == 0",
    ),
    (
        "python",
        "isinstance = issubclass = lambda *a: True\nfrom math import *\ndef f(x): return 'x'",
        "assert isinstance(f(1), int)",
    ),
    ("python", "def f(g): return g.__globals__", "def g(): return 1\nassert f(g)"),
    ("python", "def f(g): return g.gi_frame", "assert f(x for x in [1])"),
    (
        "python",
        (
            "def f(x): return x\nimport sys\nclass M: \n    def __getattr__(self, n): return lambda *a, "
            "**k: True\nsys.modules['math'] = M()"
        ),
        "import math\nassert math.isclose(f(1), 2)",
    ),
    (
        "python",
        (
            "import os, sys\nfd = 3\nwhile True:\n    try:\n        os.write(fd, b'00000007[1,2,3]')\n    "
            "except OSError:\n        break\n    if os.read(fd, 1) == b'': break"
        ),
        "assert f() == 1",
    ),
    (
        "python",
        (
            "def f(x): return x\nimport time, threading\nthreading.Thread(target=lambda: "
            "(time.sleep(0.05), __import__('os')._exit(0))).start()"
        ),
        "import time\ntime.sleep(0.2)\nassert f(1) == 2",
    ),
    ("python", "def f(x): raise StopIteration", "assert f(1) == 2"),
    ("python", "def f(x): raise KeyboardInterrupt", "assert f(1) == 2"),
    (
        "python",
        (
            "import sys; sys.setrecursionlimit(10**9)\ndef f(x):\n    l = []\n    for _ in range(100000): "
            "l = [l]\n    return l"
        ),
        "assert f(1) == 2",
    ),
    (
        "bash",
        "trap 'exit 0' EXIT ERR; enable -n [; alias [=true; shopt -s expand_aliases; f() { echo 1; }",
        '[ "$(f)" = 2 ]',
    ),
    ("bash", 'cat "$0" /proc/$$/cmdline >&2; history; f() { echo 1; }', '[ "$(f)" = 2 ]'),
    ("bash", "PATH=/nowhere; f() { echo 1; }", '[ "$(f)" = 2 ]'),
    ("bash", "printf 'end\\nend\\n0 =Mg==\\n' >&3; f() { echo 1; }", '[ "$(f)" = 3 ]'),
    (
        "bash",
        (
            "printf 'ready\\n' >&3; while read -r -u 3 x; do printf 'function f;kill\\ntext PATH "
            "=Lw==\\ntext f[$(exit)] =Lw==\\nend\\n' >&3; done; f() { echo 1; }"
        ),
        '[ "$(f)" = 3 ]',
    ),
    (
        "nodejs",
        (
            "process.on('exit', () => { process.exitCode = 0 }); process.on('uncaughtException', () => "
            "process.exit(0)); const f = () => { throw new Error('x') }"
        ),
        "require('assert')(f() === 2)",
    ),
    (
        "nodejs",
        "console.error(require('fs').readFileSync(__filename, 'utf8'), require.main, process.argv); const f = () => 1",
        "require('assert')(f() === 2)",
    ),
    (
        "nodejs",
        "Object.prototype.valueOf = () => 2; Number.prototype[Symbol.toPrimitive] = () => 2; const f = () => ({})",
        "require('assert')(f() === 2)",
    ),
    (
        "nodejs",
        (
            "Module = require('module'); Module._load = () => () => true; const require2 = () => () => "
            "true; const f = () => 1"
        ),
        "require('assert')(f() === 2)",
    ),
    ("nodejs", "const deepStrictEqual = () => {}; const f = () => 1", "deepStrictEqual(f(), 2)"),
    (
        "nodejs",
        "class A { equals() { return true } get x() { return 1 } } const f = () => new A()",
        "require('assert').deepStrictEqual(f(), {x: 2})",
    ),
    ("perl", "$SIG{__DIE__} = sub { exit 0 }; END { $? = 0 } sub f { 1 }", "die unless f() == 2;"),
    (
        "perl",
        (
            "package N; use overload '==' => sub { 1 }, 'eq' => sub { 1 }, 'bool' => sub { 1 }; package "
            "main; sub f { bless {}, 'N' }"
        ),
        "die unless f() == 2;",
    ),
    (
        "perl",
        "BEGIN { *CORE::GLOBAL::die = sub { exit 0 } } open my $me, '<', $0; print STDERR <$me>; sub f { 1 }",
        "die unless f() == 2;",
    ),
]
LATE = [
    ("python", "while True: pass", "assert True"),
    ("python", "def f():\n    while True: pass", "assert f()"),
    ("python", "import os\nos.write(3, b'00000009[\"ready\"]')\nwhile True: os.read(3, 1000)", "assert f() == 1"),
    ("nodejs", "for (;;);", "1"),
    ("bash", "while true; do :; done", "true"),
]


@pytest.fixture
def quick(shared_servers: Callable[[str], Server]) -> Server:
    """One level: what a check sees of a program is the same at each."""
    return shared_servers(SERVED[-1])


@pytest.mark.parametrize(("language", "program", "check"), RIGHT)
def test_a_right_program_passes(quick: Server, language: str, program: str, check: str) -> None:
    needs_language(language)
    answer = quick.judge(program, [{"assert": check}], language=language)
    assert answer["tests"][0]["verdict"] == "Passed", answer


@pytest.mark.parametrize(("language", "program", "check"), WRONG)
def test_a_wrong_program_does_not_pass(quick: Server, language: str, program: str, check: str) -> None:
    needs_language(language)
    answer = quick.judge(program, [{"assert": check}], language=language, timeout=2)
    test = answer["tests"][0]
    assert (test["passed"], answer["status"]) == (False, "Failed"), answer
    assert test["verdict"] in ("RuntimeError", "WrongAnswer", "TimeLimitExceeded")
    shown = test["run_result"]["stderr"]
    assert check not in shown.replace(f"    {check}\n", "")  # but for the traceback of the check itself


@pytest.mark.parametrize(("language", "program", "check"), LATE)
def test_a_program_that_does_not_end_runs_out_of_time(quick: Server, language: str, program: str, check: str) -> None:
    needs_language(language)
    answer = quick.judge(program, [{"assert": check}], language=language, timeout=0.3)
    assert answer["tests"][0]["verdict"] == "TimeLimitExceeded", answer


def test_at_every_level(server: Server) -> None:
    checks = [{"assert": "assert f(2) == 4"}, {"assert": "assert f(2) == 5"}, {"follow": "print(f(3))"}]
    answer = server.judge("def f(x): return x * x", checks)
    assert [test["verdict"] for test in answer["tests"]] == ["Passed", "RuntimeError", "Passed"]
    assert answer["tests"][2]["run_result"]["stdout"] == "9\n"
    assert "AssertionError" in answer["tests"][1]["run_result"]["stderr"]


@pytest.mark.parametrize("language", ["java", "cpp", "go", "rust"])
def test_the_other_languages_have_no_asserts(quick: Server, language: str) -> None:
    needs_language(language)
    answer = quick.http.post("/judge", json={"code": "x", "tests": [{"assert": "1"}], "language": language})
    assert answer.status_code == 422
    assert "`assert` follows code of python, bash" in answer.json()["detail"]


JAVA = 'public class Main { public static void main(String[] a) { assert 1 + 1 == %s : "no"; System.out.println(2); } }'


def test_a_java_program_runs_its_own_asserts(quick: Server) -> None:
    needs_language("java")
    answers = [quick.judge(JAVA % value, [{"output": "2"}], language="java", compile_timeout=60) for value in (2, 3)]
    assert [answer["tests"][0]["verdict"] for answer in answers] == ["Passed", "RuntimeError"]


@pytest.mark.parametrize(
    ("language", "program"),
    [
        ("python", "import os; print(4, flush=True); os._exit(0)"),
        ("cpp", '#include <cstdio>\n#include <cstdlib>\nint main() { puts("4"); exit(0); }'),
        (
            "java",
            "public class Main { public static void main(String[] a) { System.out.println(4); System.exit(0); } }",
        ),
        ("python", "import os, sys\nfor fd in range(3, 20):\n    try: os.write(fd, b'5')\n    except OSError: pass"),
        (
            "python",
            "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(0.3); print(5)\nelse: os._exit(0)",
        ),
        ("bash", "cat /proc/self/environ main.sh; ls -la / .; (sleep 0.3; echo 5) & exit 0"),
    ],
)
def test_a_wanted_output_never_reaches_the_program(quick: Server, language: str, program: str) -> None:
    needs_language(language)
    answer = quick.judge(program, [{"input": "2", "output": "5"}], language=language, compile_timeout=60)
    assert (answer["tests"][0]["passed"], answer["status"]) == (False, "Failed")
