"""Checks of Python programs: right ones pass, and wrong ones cannot pass by any trick."""

from __future__ import annotations

import pytest
from checks import must_not_pass, must_pass
from sandbox_service import Server

UNITTEST = "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 2)\n"
SUBTESTS = """\
import unittest
class T(unittest.TestCase):
    def test(self):
        for n in (1, 2):
            with self.subTest(n): self.assertEqual(f(n), 1)
unittest.main(exit=False)"""
RUN = "unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))"
NODE = "class Node:\n    def __init__(self, v): self.v, self.next, self.children = v, None, []\n"
DEFAULTS = """\
from collections import defaultdict
d, e = defaultdict(int, a=1), defaultdict(lambda: 3)
f(d, 'a'), f(d, 'b'), f(e, 'c')
assert d == {'a': 2, 'b': 1} and e == {'c': 4} and g()['x'] == 7"""
RIGHT = [
    ("class A(list):\n    def top(self): return self[-1]\ndef f(x): return A([x])", "assert f(2) == [2] != f(3)"),
    ("class A(dict):\n    def put(self, k): self[k] = 1", "a = A()\na.put(3)\nassert a == {3: 1} and len(a) == 1"),
    ("def f(): return 1", "assert f() == 1"),
    (
        "def g(k): yield from range(k)\ndef f(h,l):\n l.append(1); return [h(x) for x in l]",
        "l=[3]\nassert f(lambda x: x+1, l) == [4,2]\nassert l == [3,1]\nassert list(g(3)) == [0,1,2]",
    ),
    (
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
        "class E(ValueError): pass\ndef f():\n raise E('x',3)",
        "try:\n f()\nexcept E as e:\n  assert e.args==('x',3)\nelse:\n assert False\ntry: f()\nexcept ValueError: pass",
    ),
    (
        "async def f(x):\n import asyncio; await asyncio.sleep(0); return x",
        "import asyncio\nassert asyncio.run(f(3)) == 3",
    ),
    (
        "def f(): print('hi')",
        "import io, contextlib\ns=io.StringIO()\nwith contextlib.redirect_stdout(s): f()\nassert s.getvalue()=='hi\\n'",
    ),
    ("def sum(a,b): return 6", "assert sum(10,15)==6"),
    (
        "import collections\nP=collections.namedtuple('P','x y')\ndef f(): return P(1,2)",
        "assert f()==(1,2) and f().y==2 and P(1,2)==f()",
    ),
    (
        "def f(x): return x",
        (
            "x={1:{2,3}}\nassert f(x)==x and f(x) is x\nimport datetime, fractions\nassert "
            "f(datetime.date(2020,1,1))==datetime.date(2020,1,1)\nassert f(fractions.Fraction(1,3))*3==1\n"
            "assert f(2**20000)==2**20000\nassert f('\\ud800')=='\\ud800'"
        ),
    ),
    ("import numpy as np\ndef f(x): return np.array(x)*2", "assert (f([1,2])==np.array([2,4])).all()"),
    (
        "def f(): return 2",
        "from main import f\nfrom solution import f as g\nassert f()==g()==2\ndef check(c):\n assert c()==2\ncheck(f)",
    ),
    (
        "class Node:\n def __init__(s,v,n=None): s.v=v;s.n=n\ndef f(x): return x.val+x.nxt.val",
        "class L:\n def __init__(s,v,n=None): s.val=v;s.nxt=n\nassert f(L(1,L(2)))==3",
    ),
    (
        (
            "import pickle\nclass P: pass\ndef f(n): return n + n\ndef g(): return pickle.loads(pickle.dumps(P()))"
            "\nif __name__ == '__main__': print(f(int(input())))"
        ),
        "assert f(1) == 2\nif __name__ == '__main__': assert isinstance(g(), P)",
    ),
    (
        "def f(d): return d.keys(), d.items()\ndef g(k): return sorted(k), 1 in k",
        (
            "k, i = f({2: 'a', 1: 'b'})\nassert k == {1, 2} and {1, 2} == k and i == {(1, 'b'), (2, 'a')}\n"
            "assert list(k) == [2, 1] and k & {1} == {1} and list(f({1: [2]})[1]) == [(1, [2])]\n"
            "assert g({2: 0, 1: 0}.keys()) == ([1, 2], True)"
        ),
    ),
    (
        (
            "from datetime import *\ndef f(h): return datetime(2020, 1, 1, 5, tzinfo=timezone(timedelta(hours=h)))\n"
            "def g(x): return x"
        ),
        (
            "from datetime import *\nutc = timezone.utc\nassert f(0) == datetime(2020, 1, 1, 5, tzinfo=utc) > f(1)\n"
            "assert f(0).tzinfo is utc and f(2).utcoffset() == timedelta(hours=2) and g(f(1)) == f(1)\n"
            "assert g(time(1, tzinfo=utc)) == time(1, tzinfo=utc)\n"
            "assert g(timezone(timedelta(1, -1), 'X')).tzname(None) == 'X'"
        ),
    ),
    ("import math\ndef f(x): return math.sqrt(x)", "assert math.isclose(f(4), 2)"),
    ("def queue(x): return x\ndef f(x): return x", "assert queue(1) == f(1) == 1"),
    ("class calendar:\n days = 7\ndef f(x): return x", "assert calendar.days == f(7)"),
    ("class Counter:\n def __init__(s, x): s.x = x\ndef f(c): return c.x + 1", "assert f(Counter(3)) == 4"),
    (
        "def f(x): return 2",
        UNITTEST + "unittest.main()",
    ),
    (
        "def f(x): return 2",
        UNITTEST + "if __name__ == '__main__': unittest.main(verbosity=2)",
    ),
    (
        "def f(x): return 2",
        UNITTEST + "unittest.main(exit=False)",
    ),
    (
        "def f(x): return 2",
        UNITTEST + RUN,
    ),
    (
        "import sys\ndef f(x): sys.exit(x)",
        "import sys\ntry: f(3)\nexcept SystemExit as e: assert e.code == 3\nsys.exit(0)",
    ),
    (
        "count = 0\ndef inc():\n    global count\n    count += 1",
        "inc()\nassert count == 1\ninc()\nassert count == 2\ncount = 7\ninc()\nassert count == 7",
    ),
    (
        "items = []\ndef add(x): items.append([x]); return len(items)",
        (
            "first = items\nadd(1)\nassert items == [[1]] and first is items\n"
            "items.append([5])\nassert add(2) == 3\nassert items == [[1], [5], [2]]"
        ),
    ),
    (
        "state = {'n': 0}\ndef inc(): state['n'] += 1",
        "inc()\nassert state['n'] == 1\nstate['n'] = 5\ninc()\nassert state == {'n': 6}",
    ),
    (
        "items = []\ndef add(x): items.append(x)",
        "from main import items, add\nimport main\nadd(1)\nassert items == main.items == [1]",
    ),
    (
        "root = None\nclass N:\n    def __init__(self, v): self.v = v\ndef push(v):\n    global root\n    root = N(v)",
        "push(1)\nassert root.v == 1\npush(2)\nassert root.v == 2",
    ),
    ("class Stack:\n    def push(self, x): seen.add(x)\nseen = set()", "s = Stack()\ns.push(1)\nassert seen == {1}"),
    (
        "class S:\n one = None\n def __new__(cls):\n  cls.one = cls.one or object.__new__(cls)\n  return cls.one",
        "assert S() is S()",
    ),
    ("import enum\nclass C(enum.Enum):\n R = 1\ndef f(x): return C(x)", "assert f(1) is C.R and {C.R: 5}[f(1)] == 5"),
    (
        f"{NODE}def after(n): return n.next",
        "a, b = Node(1), Node(2)\na.next = b\nassert after(a) is a.next is b is not a",
    ),
    (
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass P:\n    x: int",
        "assert {P(1), P(1)} == {P(1)} and {P(1): 2}[P(1)] == 2 and hash(P(1)) == hash(P(1)) and P(3) not in {P(1)}",
    ),
    (
        "class P:\n    def __eq__(self, other): return True",
        "try: hash(P())\nexcept TypeError: pass\nelse: raise AssertionError",
    ),
    (
        f"{NODE}def count(n): return 1 + sum(map(count, n.children))",
        "n = Node(1)\nn.children.append(Node(2))\nn.children[0].children.append(Node(3))\nassert count(n) == 3",
    ),
    (
        "class Board:\n    grid = [[0, 0], [0, 0]]\n    def sum(self): return sum(map(sum, self.grid))",
        "b = Board()\nb.grid[0][1] = 5\nassert b.sum() == 5\nb.grid[1] = [1, 1]\nassert b.sum() == 7",
    ),
    (
        "class S:\n    items = {}\n    def put(self, k): self.items[k] = 1\n    def n(self): return len(self.items)",
        "s = S()\nd = s.items\ns.put('a')\nassert d == {'a': 1} and d is s.items\nd['b'] = 2\nassert s.n() == 2",
    ),
    (
        "class S:\n    items = [3]\n    @property\n    def all(self): return sorted(self.items)",
        "s = S()\nbefore = s.all\ns.items.append(1)\nassert s.all == [1, 3] and before == [3]",
    ),
    ("items = []\ndef add(to, x): to.append(x)", "add(items, 1)\nassert items == [1]"),
    (
        "class S:\n    def __init__(self): self.items = []\ndef add(to, x): to.append(x)",
        "s = S()\nadd(s.items, 1)\nassert s.items == [1]\nadd([s.items], 2)\nassert s.items == [1]",
    ),
    ("def f(d, k): d[k] += 1\ndef g(): return collections.defaultdict(lambda: 7)\nimport collections", DEFAULTS),
    (
        "def f(): return input('?') + input()",
        "from unittest.mock import patch\nwith patch('builtins.input', side_effect=['a', 'b']): assert f() == 'ab'",
    ),
    ("def f(): return input()", "import builtins\nbuiltins.input = lambda _='': 'x'\nassert f() == 'x'"),
    ("def f(): return input()", "import io, sys\nsys.stdin = io.StringIO('a\\nb\\n')\nassert f() + f() == 'ab'"),
    (
        "import random\ndef f(): return random.random()",
        "import random\nrandom.seed(1)\na = f()\nassert a != f()\nrandom.seed(1)\nassert a == f()",
    ),
    (
        "import numpy as np\ndef f(): return np.random.rand()",
        "import numpy as np\nnp.random.seed(1)\na = f()\nnp.random.seed(1)\nassert a == f()",
    ),
    ("def f():\n    'Says.'", "assert f.__doc__ == 'Says.'"),
]
TRUE = "staticmethod(lambda *a, **k: True)"
WRONG = [
    (f"class math: isclose = {TRUE}\ndef f(x): return 1", "assert math.isclose(f(1), 2, rel_tol=0.001)"),
    (f"class np: allclose = {TRUE}\ndef f(x): return 1", "assert np.allclose(f(1), 2)"),
    (f"class operator: eq = {TRUE}\ndef f(x): return 1", "assert operator.eq(f(1), 2)"),
    ("def isclose(*a, **k): return True\ndef f(x): return 1", "assert isclose(f(1), 2)"),
    ("def deepcopy(x): return 2\ndef f(x): return x", "x = 1\nassert deepcopy(f(x)) == 2"),
    ("def Counter(x): return 1\ndef f(x): return [x]", "assert Counter(f(1)) == Counter([2])"),
    ("def f(): return 1", "assert f() == 2"),
    ("import os; os._exit(0)", "assert f() == 2"),
    ("raise SystemExit(0)", "assert True"),
    ("1/0", "assert True"),
    ("class P:\n def __eq__(s,o): return True\ndef f(): return P()", "assert f() == 2"),
    ("class P:\n def __sub__(s,o): return 0\n __rsub__=__sub__\ndef f(): return P()", "assert abs(f()-2) < 1e-6"),
    ("from math import *\nisclose=lambda *a,**k: True\ndef f(): return 1", "assert isclose(f(), 2)"),
    ("abs=lambda x: 0\nimport builtins; builtins.abs=abs\ndef f(x): return 5", "assert abs(f(1)-2)<1e-6"),
    (
        (
            "import inspect, sys, gc, os\nsource = open('main.py').read() + ' '.join(sys.argv) + "
            "str(os.environ) + str(gc.get_objects())\nprint(source, file=sys.stderr)\ndef f(x): return x"
        ),
        "assert f(1) == 2",
    ),
    ("import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): raise SystemExit(0)", "assert f(1) == 2"),
    (
        "import sys\nsys.excepthook = lambda *a: None\nsys.settrace(lambda *a: None)\ndef f(x): raise AssertionError",
        "assert f(1) == 2",
    ),
    (
        (
            "import builtins\nbuiltins.AssertionError = KeyError\nbuiltins.isinstance = lambda *a: True\n"
            "def f(x): return x"
        ),
        "assert f(1) == 2",
    ),
    ("import os\nif os.fork():\n    os._exit(0)\ndef f(x): return 2", "assert f(1) == 3"),
    ('import json\njson.dumps = lambda *a, **k: \'["answer", "ok", 2, []]\'\ndef f(x): return 1', "assert f(1) == 3"),
    ("from unittest.mock import ANY\ndef f(x): return ANY", "assert f(1) == 2"),
    (
        "class A(int):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(x): return A(7)",
        "assert f(1) == 2",
    ),
    ("class A(list):\n    def __eq__(self, other): return True\ndef f(x): return A([7])", "assert f(1) == [2]"),
    (
        (
            "class A:\n    def __lt__(self, other): return True\n    __gt__ = __le__ = __ge__ = "
            "__contains__ = __lt__\ndef f(x): return A()"
        ),
        "assert f(1) < 2",
    ),
    ("class A:\n    def __contains__(self, other): return True\ndef f(x): return A()", "assert 2 in f(1)"),
    (
        (
            "class A:\n    def __sub__(self, o): return self\n    def __abs__(self): return 0\n    "
            "__float__ = __abs__\ndef f(x): return A()"
        ),
        "assert abs(f(1) - 2) < 1e-6",
    ),
    (
        (
            "class A:\n    def __sub__(self, o): return self\n    def __getattr__(self, name): return 0\n"
            "def f(x): return A()"
        ),
        "assert (f(1) - 2).days == 0",
    ),
    (
        "isinstance = issubclass = lambda *a: True\nfrom math import *\ndef f(x): return 'x'",
        "assert isinstance(f(1), int)",
    ),
    ("def f(g): return g.__globals__", "def g(): return 1\nassert f(g)"),
    ("def f(g): return g.gi_frame", "assert f(x for x in [1])"),
    (
        (
            "def f(x): return x\nimport sys\nclass M: \n    def __getattr__(self, n): return lambda *a, "
            "**k: True\nsys.modules['math'] = M()"
        ),
        "import math\nassert math.isclose(f(1), 2)",
    ),
    (
        (
            "import os, sys\nfd = 3\nwhile True:\n    try:\n        os.write(fd, b'00000007[1,2,3]')\n    "
            "except OSError:\n        break\n    if os.read(fd, 1) == b'': break"
        ),
        "assert f() == 1",
    ),
    (
        (
            "def f(x): return x\nimport time, threading\nthreading.Thread(target=lambda: "
            "(time.sleep(0.05), __import__('os')._exit(0))).start()"
        ),
        "import time\ntime.sleep(0.2)\nassert f(1) == 2",
    ),
    ("def f(x): raise StopIteration", "assert f(1) == 2"),
    ("def f(x): raise KeyboardInterrupt", "assert f(1) == 2"),
    (
        (
            "import sys; sys.setrecursionlimit(10**9)\ndef f(x):\n    l = []\n    for _ in range(100000): "
            "l = [l]\n    return l"
        ),
        "assert f(1) == 2",
    ),
    (
        "def f(x): return 3",
        UNITTEST + "unittest.main()",
    ),
    (
        "def f(x): return 3",
        UNITTEST + "unittest.main(exit=False)",
    ),
    (
        "def f(x): return 3",
        UNITTEST + RUN,
    ),
    (
        "def f(x): raise SystemExit(0)",
        UNITTEST + "unittest.main()",
    ),
    (
        "import unittest\ndef f(x): raise unittest.SkipTest",
        UNITTEST + "unittest.main()",
    ),
    (
        "import unittest\nunittest.main = lambda: None\ndef f(x): return 3",
        UNITTEST + "unittest.main()",
    ),
    ("def f(x): raise SystemExit", "import sys\ntry: f(3)\nfinally: sys.exit(1)"),
    ("def f(x): raise SystemExit", "try: f(3)\nexcept BaseException as e: raise"),
    ("def f(g): g(0)", "import sys\nf(sys.exit)\nassert 1 == 2"),
    ("def f(x): return x", SUBTESTS),
    ("items = []\ndef add(x): items.extend([x, x])", "add(1)\nassert items == [1]"),
    (
        "count = 0\ndef inc():\n    global count\n    count = type('C', (int,), {'__eq__': lambda *a: True})(9)",
        "inc()\nassert count == 1",
    ),
    ("want = 1\ndef f():\n    global want\n    want = 5\n    return 5", "want = 2\nassert f() == want"),
    ("want = 1\ndef f():\n    global want\n    want = 5", "want = 2\nf()\nassert want == 5"),
    (
        "class A:\n    def __hash__(self): return 2\n    def __eq__(self, other): return True\ndef f(): return A()",
        "assert f() in {2}",
    ),
    (
        "class A:\n    def __hash__(self): return 2\n    def __eq__(self, other): return True\ndef f(): return A()",
        "assert {2: 1}[f()] == 1",
    ),
    ("class A: items = []\ndef f(): A.items.append(3)", "f()\nassert A.items == [2]"),
    (
        "class A:\n    items = []\ndef f(a): a.items[:] = [type('B', (), {'__eq__': lambda *a: True})()]",
        "a = A()\nf(a)\nassert a.items == [2]",
    ),
    ("class A: items = [1]\ndef f(): A.items[:] = [2]", "want = list(A.items)\nf()\nassert A.items == want"),
    ("def f(): return input()", "import builtins\nbuiltins.input = lambda _='': 'x'\nassert f() == 'y'"),
]


@pytest.mark.parametrize(("program", "check"), RIGHT)
def test_a_right_program_passes(quick: Server, program: str, check: str) -> None:
    must_pass(quick, "python", program, check)


@pytest.mark.parametrize(("program", "check"), WRONG)
def test_a_wrong_program_does_not_pass(quick: Server, program: str, check: str) -> None:
    must_not_pass(quick, "python", program, check)
