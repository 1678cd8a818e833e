"""The python demo: questions about lists of numbers, which a line of code answers and a tiny model cannot in its head.

Some demonstrations run the right code, some answer at once, some run the code of another question. Only the reward
tells them apart.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path

import yaml

from agentrl.cli.demo.description import DataRequest, Demo, DemoData, ServiceNeed, draw_habits, write_demo_rows
from agentrl.cli.demo.tokenizer import ANSWER_HEAD
from agentrl.cli.output import write_text
from agentrl.data.preprocess.arithmetic import DATA_SOURCE
from agentrl.files import find_file
from agentrl.types import JsonDict, Message

TOOLS = "tools/demo_python.yaml"
CODE = {
    "sum": "sum(n)",
    "sum of the squares": "sum(x*x for x in n)",
    "spread": "max(n)-min(n)",
}
"""What is asked, and the expression that answers it where `n` is the list."""
NUMBERS, LARGEST = (3, 5), 99
"""How many numbers a question has at least and at most, and the largest of them."""
PIECES = (
    *("python", "code", "n=[", " of "),
    *(f"]; print({expression})" for expression in CODE.values()),
    *CODE,
)


class CodeHabit(StrEnum):
    """How a demonstration gets its answer."""

    RUN_CODE = "run_code"
    """Runs the code that answers the question."""
    DIRECT = "direct"
    """Answers without code."""
    WRONG_CODE = "wrong_code"
    """Runs the code of another question on these numbers."""


SHARES = {CodeHabit.RUN_CODE: 0.45, CodeHabit.DIRECT: 0.35, CodeHabit.WRONG_CODE: 0.20}

Question = tuple[str, tuple[int, ...]]
"""What is asked, and of which numbers."""


def write_number_lists(request: DataRequest) -> DemoData:
    """Write the demo's rows. All lists of numbers differ, those of demonstrations too.

    So the model can only learn to copy numbers, not the answers by heart.
    """
    rng = random.Random(request.seed)
    sizes = (request.train_rows, request.held_out_rows, request.demonstrations)
    questions = iter([(rng.choice(list(CODE)), numbers) for numbers in draw_lists(sum(sizes), rng)])
    known, new, shown = (list(islice(questions, size)) for size in sizes)
    return write_demo_rows(
        request.folder,
        [code_demonstration(*each, rng) for each in zip(draw_habits(rng, SHARES, len(shown)), shown, strict=True)],
        [code_row(question, "train", index) for index, question in enumerate(known)],
        [code_row(question, "test", index) for index, question in enumerate(new)],
    )


def draw_lists(count: int, rng: random.Random) -> list[tuple[int, ...]]:
    """Different lists of numbers."""
    lists: dict[tuple[int, ...], None] = {}
    while len(lists) < count:
        lists[tuple(rng.randint(1, LARGEST) for _ in range(rng.randint(*NUMBERS)))] = None
    return list(lists)


def question_text(question: Question) -> str:
    """What the user writes: `spread of 12,7,30`."""
    asked, numbers = question
    return f"{asked} of {_joined(numbers)}"


def answer_to(question: Question) -> str:
    """The right answer: what its code prints."""
    asked, n = question
    values = {"sum": sum(n), "sum of the squares": sum(x * x for x in n), "spread": max(n) - min(n)}
    return str(values[asked])


def code_for(question: Question) -> str:
    """The code that answers a question: `n=[12,7,30]; print(max(n)-min(n))`."""
    asked, numbers = question
    return f"n=[{_joined(numbers)}]; print({CODE[asked]})"


def code_demonstration(habit: CodeHabit, question: Question, rng: random.Random) -> list[Message]:
    """A conversation about a question."""
    asked: Message = {"role": "user", "content": question_text(question)}
    if habit is CodeHabit.DIRECT:
        return [asked, {"role": "assistant", "content": ANSWER_HEAD + answer_to(question)}]
    run = question
    if habit is CodeHabit.WRONG_CODE:
        run = (rng.choice([other for other in CODE if other != question[0]]), question[1])
    function = {"name": "python", "arguments": json.dumps({"code": code_for(run)})}
    return [
        asked,
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": answer_to(run), "name": "python"},
        {"role": "assistant", "content": ANSWER_HEAD + answer_to(run)},
    ]


def code_row(question: Question, split: str, index: int) -> JsonDict:
    """Dataset row of one question."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": question_text(question)}],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": answer_to(question)},
        "agent_name": "tool_agent",
        "extra_info": {"split": split, "index": index},
    }


def use_sandbox(out: Path, url: str) -> Sequence[str]:
    """Write the demo's tool YAML with the address of the sandbox; returns the override that names it.

    Raises:
        UserInputError: it cannot be written.
    """
    tools = yaml.safe_load(find_file(TOOLS).read_text(encoding="utf-8"))
    tools["tools"][0]["config"]["sandbox_url"] = url
    file = out / "tools.yaml"
    write_text(file, yaml.safe_dump(tools))
    return [f"actor_rollout_ref.rollout.multi_turn.tool_config_path={json.dumps(str(file))}"]


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


PYTHON = Demo(
    name="python",
    title="a python agent learns to run code",
    questions="questions",
    habits="some answer at once, some run the wrong code",
    recipe="demo_python",
    warm_start="demo_python_sft",
    folder=Path("outputs/demo_python"),
    data_source=DATA_SOURCE,
    write=write_number_lists,
    pieces=PIECES,
    service=ServiceNeed("sandbox", lambda _out: [], use_sandbox),
)
