"""Checks that every program would pass are the row's fault, and no others are refused."""

from __future__ import annotations

import pytest

from agentrl.clients.empty_checks import must_test


@pytest.mark.parametrize(
    ("language", "check"),
    [
        ("python", "def check(candidate):\n    assert candidate(1) == 2"),
        ("python", "METADATA = {'author': 'x'}\n\ndef check(candidate):\n    assert candidate(1) == 2\n"),
        ("python", "def test_f():\n    assert f(1) == 2"),
        ("python", "async def test_f():\n    assert f(1) == 2"),
        ("python", "import unittest\nclass T(unittest.TestCase):\n    def test_f(self): self.assertEqual(f(1), 2)"),
        ("python", "f(1) == 2"),
        ("python", "f(1) == 2 and not f(2) == 4"),
        ("python", "'''asserts'''\nfrom main import f\n"),
        ("python", "# assert f(1) == 2"),
        ("nodejs", "f(1) === 2"),
        ("nodejs", "f([1, (2)], 'a;b') == 'c';\nf(2) !== x[0];"),
        ("perl", 'f(1) == 2; f("a") eq "b";'),
    ],
)
def test_a_check_that_tests_nothing_is_refused(language: str, check: str) -> None:
    with pytest.raises(ValueError, match=r"nothing can fail.*wanted `(assert|die)"):
        must_test(check, language)


@pytest.mark.parametrize(
    ("language", "check"),
    [
        ("python", "assert f(1) == 2"),
        ("python", "def check(candidate):\n    assert candidate(1) == 2\ncheck(f)"),
        ("python", "for n in (1, 2):\n    assert f(n)"),
        ("python", "try:\n    f(0)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError"),
        ("python", "if f(1) != 2: raise AssertionError"),
        ("python", "f(1) == 2 or fail()"),
        ("python", "f(1)"),
        ("python", "x = f(1)"),
        ("python", "import unittest\nif __name__ == '__main__':\n    unittest.main()"),
        ("python", "class A:\n    assert f(1) == 2"),
        ("nodejs", "assert(f(1) === 2)"),
        ("nodejs", "console.assert(f(1) === 2);"),
        ("nodejs", "f(1) === 2 || process.exit(1)"),
        ("nodejs", "if (f(1) !== 2) throw new Error('f')"),
        ("nodejs", "const x = f(1)\nx === 2\nassert(x)"),
        ("nodejs", "f(1)"),
        ("nodejs", "(() => { check(f) })()\nf(1) === 2"),
        ("nodejs", "f((x) => { assert(x) }) === 2"),
        ("perl", "die unless f(1) == 2;"),
        ("perl", "f(1) == 2 or die;"),
        ("perl", "is(f(1), 2);"),
        ("bash", '[ "$(f 1)" == 2 ]'),
    ],
)
def test_a_check_that_can_fail_is_taken(language: str, check: str) -> None:
    must_test(check, language)
