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
