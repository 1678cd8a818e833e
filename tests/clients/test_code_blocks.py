"""The code in an answer, in the ways in which models fence it."""

from __future__ import annotations

import pytest

from agentrl.clients import last_code_block, without_fence

SHOWN = "\nIt prints:\n```text\n42\n```\n"


@pytest.mark.parametrize(
    "text",
    [
        "```python main.py\nx = 1\n```" + SHOWN,
        "```py\nx = 1\n```" + SHOWN,
        "```Python3\nx = 1\n```" + SHOWN,
        '```{.python title="a"}\nx = 1\n```' + SHOWN,
        "```python:main.py\nx = 1\n```" + SHOWN,
        "~~~python\nx = 1\n~~~" + SHOWN,
        "~~~\nx = 1\n~~~" + SHOWN,
        "````python\nx = 1\n````" + SHOWN,
        "   ```python\n   x = 1\n   ```" + SHOWN,
        "- Here:\n\n  ```python\n  x = 1\n  ```" + SHOWN,
        "1. ```python\n   x = 1\n   ```" + SHOWN,
        "> ```python\n> x = 1\n> ```" + SHOWN,
        "\t```python\n\tx = 1\n\t```" + SHOWN,
        "```python\r\nx = 1\r\n```\r\n" + SHOWN.replace("\n", "\r\n"),
        "```\nx = 1\n```\n```output\n42\n```",
        "```\nx = 1\n```\nOutput:\n```\n42\n```",
        "```\nx = 1\n```\nOutput:\n```\nHello, world!\n```",
        "```python\nx = 1```",
        "```python\nx = 1```" + SHOWN,
        "```python\nx = 1",
        "```js\nlet x\n```\n```python\nx = 1\n```\n```js\nlet y\n```",
        "```unknown\nx = 1\n```" + SHOWN,
        "Here it is: ```python\nx = 1\n```" + SHOWN,
        "The code of `f`, in full:```py\nx = 1\n```" + SHOWN,
        "**Solution:** ```\nx = 1\n```" + SHOWN,
        "My code ```python\nx = 1```" + SHOWN,
        "Its input: ```text\n42\n```\n```python\nx = 1\n```",
        "Write ``` and code.\n```python\nx = 1\n```",
        "Put it in ``` fences:\n```python\nx = 1\n```",
        "<think>\nSo:\n```python\nx = 0\n```</think>\n```python\nx = 1\n```",
        "<think>\nSo:\n```python\nx = 0\n``` </think>\n```python\nx = 1\n```",
        "<think>\nSo:\n```python\nx = 0\n</think>\n```python\nx = 1\n```",
        "</think>```python\nx = 1\n```" + SHOWN,
        "<answer>```python\nx = 1\n```</answer>",
        "<answer>\n```python\nx = 1\n```\n</answer>",
        "<answer>```python\nx = 1```</answer>" + SHOWN,
        "<answer> ```python\nx = 1\n</answer>",
        "```python\nx = 1\n```<|im_end|>",
        "```python\nx = 1\n``` It prints 42.\n```text\n42\n```",
        "```python\nx = 1\n```\n```python\n```",
        "```python\nx = 1\n```\nOr shorter:\n```python",
    ],
)
def test_the_last_block_that_is_code(text: str) -> None:
    assert last_code_block(text, "python") == "x = 1"


@pytest.mark.parametrize("program", ["```python\nx = 1\n```", "```\nx = 1\n```"])
@pytest.mark.parametrize(
    "later",
    [
        "This prints:\n```python\n[1, 2]\n```",
        "```python\n>>> f(1)\n2\n```",
        "```pycon\n>>> x = 1\n>>> f(1)\n2\n```",
        "```python\n3 4\n```",
        "```py\nO(n log n) time\n```",
        "```python\nO(n)\n```",
        "Use it like this:\n```python\nprint(f(1))\n```",
        "```python\nf(1) # 2\nf([y for y in z])\n```",
        "```python\nnumbers = [1, 2]\nfor n in numbers:\n    print(f(n))\n```",
        "```python\nassert f(1) == 2\n```",
        "```ipython\n%timeit f(1)\n```",
        "```python\n$ python main.py\n```",
        "```python\n# nothing else\n```",
        "```bash\npython3 main.py\n```",
        "```sh\nx=2\n```",
        "```sql\nSELECT 1;\n```",
        "```xml\n<a/>\n```",
        "```mermaid\ngraph TD\n```",
        "```\n3 4\n```",
    ],
)
def test_a_block_that_is_no_program_does_not_hide_the_one_before_it(program: str, later: str) -> None:
    assert last_code_block(f"{program}\n{later}\n", "python") == "x = 1"
    assert last_code_block(f"{later}\n{program}\n", "python") == "x = 1"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\ndef f(:\n```\n```bash\nx=2\n```", "def f(:"),
        ("```\ndef f(:\n```\n```sql\nSELECT 1;\n```", "def f(:"),
        ("```python\n>>> f(1)\n2\n```", ">>> f(1)\n2"),
        ("```bash\nls\n```", "ls"),
    ],
)
def test_where_no_block_is_a_program(text: str, code: str) -> None:
    assert last_code_block(text, "python") == code


@pytest.mark.parametrize(
    "code",
    [
        "print(sum(map(int, input().split())))",
        "print([y for y in input()], (lambda n, *m: n)(1))",
        "try:\n    print(int(input()))\nexcept ValueError as error:\n    print(error)",
        "match input().split():\n    case [a, *b]:\n        print(a, b)",
        "match {}:\n    case {'a': 1, **c} as d:\n        print(c, d)",
        "pass",
        "import math\nprint(anything)",
        "def f(rows: List[int]):\n    return rows",
    ],
)
def test_short_programs_are_programs(code: str) -> None:
    assert last_code_block(f"```python\nx = 1\n```\n```python\n{code}\n```", "python") == code


@pytest.mark.parametrize(
    ("language", "later"),
    [
        ("bash", "```bash\n$ ./main.sh\n42\n```"),
        ("nodejs", "```js\n> f(1)\n2\n```"),
        ("cpp", "```cpp\n3 4\n```"),
        ("cpp", "```\n[1, 2]\n```"),
        ("cpp", "```bash\ng++ main.cpp\n```"),
    ],
)
def test_sessions_and_values_in_other_languages(language: str, later: str) -> None:
    for mark in (language, ""):
        assert last_code_block(f"```{mark}\necho 1;\n```\n{later}\n", language) == "echo 1;"


def test_a_fence_within_the_code_does_not_end_it() -> None:
    code = 'def f():\n    """\n    ```\n    f()\n    ```\n    """\n    return 1'
    assert last_code_block(f"```python\n{code}\n```", "python") == code
    assert last_code_block(f"Here: ```python\n{code}\n```", "python") == code
    tags = 'page = "<b>```</b>"\nprint("</answer>")'
    assert last_code_block(f"```python\n{tags}\n```", "python") == tags
    assert last_code_block("    ```python\n    if x:\n        y\n    ```", "python") == "if x:\n    y"


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        "use `x = 1` or ```x = 1```",
        "",
        "```text\n42\n```",
        "~~ x ~~",
        "Is ``` a fence?",
        "Is this ``` output\n42",
    ],
)
def test_no_block_is_no_code(text: str) -> None:
    assert last_code_block(text, "python") is None


@pytest.mark.parametrize(
    "code", ["```python main.py\nx\n```", "~~~\nx\n~~~", " ```\r\nx\r\n``` ", "x", "  ```py\n  x\n  ```"]
)
def test_code_given_as_a_block(code: str) -> None:
    assert without_fence(code) == "x"


@pytest.mark.parametrize("code", ["x\n```", "```py\nx\n```\ntext", "```py\nx\n```\n```py\ny\n```", "x\ny\n"])
def test_other_code_stays(code: str) -> None:
    assert without_fence(code) == code
