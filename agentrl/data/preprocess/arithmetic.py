"""`agentrl data arithmetic`: expressions with the length and operator mix of GSM8K's annotations, exact answers.

With `--words`, short calculations in words (`arithmetic_words`). Everything is seeded: the same arguments give the same
rows on every machine. Questions never repeat, not even between training and test rows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from pathlib import Path

from agentrl.data.preprocess.arithmetic_mix import (
    FIRST_OPERAND,
    NEXT_OPERAND,
    OPERATOR_SEQUENCES,
    PARENTHESES,
    TRAILING_ZEROS,
    WHOLE_ANSWERS,
)
from agentrl.data.preprocess.arithmetic_words import WordProblem, generate_problems
from agentrl.data.preprocess.expressions import canonical, exact_value, expressions_in
from agentrl.data.preprocess.gsm8k import read_gsm8k
from agentrl.data.preprocess.writing import keep_existing, write_parquets
from agentrl.errors import UserInputError
from agentrl.types import JsonDict

DATA_SOURCE = "agentrl/arithmetic"
Pair = tuple[str, str]
"""Expression and answer, for example `("48/2", "24")`."""

_TRIES_PER_EXPRESSION = 2000


def generate_expressions(count: int, seed: int, exclude: Collection[str] = ()) -> list[Pair]:
    """Draw distinct expressions with their answers.

    Few short expressions exist, so a large `count` drifts towards longer ones.

    Args:
        count: how many.
        seed: seed of the generator.
        exclude: expressions that must not be drawn, for example those of another split.

    Returns:
        `(expression, answer)` pairs; answers are non-negative, in canonical form with at most four decimals.
    """
    rng = random.Random(seed)
    seen = set(exclude)
    pairs = []
    for _ in range(count):
        pair = _draw_new(rng, seen)
        seen.add(pair[0])
        pairs.append(pair)
    return pairs


def expressions_from_gsm8k(source: Path) -> list[Pair]:
    """Distinct expressions of the annotations in a GSM8K jsonl file (or a folder with `train.jsonl`), with answers."""
    return list(expressions_in(row["answer"] for row in read_gsm8k(source, "train")))


def split_expressions(pairs: list[Pair], train: int, test: int, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Shuffle and cut into a training and a test split of the given sizes.

    Raises:
        UserInputError: there are not enough expressions.
    """
    if train + test > len(pairs):
        raise UserInputError(
            f"got {train} training and {test} test expressions to write, but the source has only {len(pairs)} distinct "
            "ones: ask for fewer"
        )
    shuffled = random.Random(seed).sample(pairs, train + test)
    return shuffled[:train], shuffled[train:]


def expression_row(pair: Pair, split: str, index: int, agent_name: str = "tool_agent") -> JsonDict:
    """Dataset row of one expression: the user message is the expression, nothing else."""
    expression, answer = pair
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": expression}],
        "ability": "arithmetic",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "agent_name": agent_name,
        "extra_info": {"split": split, "index": index, "question": expression, "answer": answer},
    }


def write_arithmetic(
    out: Path,
    train: int,
    test: int,
    seed: int,
    from_gsm8k: Path | None = None,
    agent_name: str = "tool_agent",
    overwrite: bool = True,
) -> dict[str, Path]:
    """Write `train.parquet` and `test.parquet` with disjoint expressions to `out`.

    Args:
        out: folder; created if missing.
        train: training rows.
        test: test rows.
        seed: seed of the generator, or of the shuffle with `from_gsm8k`.
        from_gsm8k: take real expressions from this GSM8K jsonl file instead of generating them.
        agent_name: agent loop of the rows.
        overwrite: replace files that exist.

    Returns:
        The written file of each split.
    """
    files = {split: out / f"{split}.parquet" for split in ("train", "test")}
    keep_existing(list(files.values()), overwrite)
    pairs = generate_expressions(train + test, seed) if from_gsm8k is None else expressions_from_gsm8k(from_gsm8k)
    rows = {
        split: [expression_row(pair, split, index, agent_name) for index, pair in enumerate(part)]
        for split, part in zip(files, split_expressions(pairs, train, test, seed), strict=True)
    }
    write_parquets({files[split]: part for split, part in rows.items()})
    return files


def word_row(problem: WordProblem, split: str, index: int, agent_name: str = "tool_agent") -> JsonDict:
    """Dataset row of a calculation in words; its expression stands in `extra_info`, which no model reads."""
    row = expression_row((problem.question, problem.answer), split, index, agent_name)
    row["extra_info"]["expression"] = problem.expression
    return row


def demonstration_row(problem: WordProblem, calls: bool = True) -> JsonDict:
    """A row for `agentrl sft`: the question, perhaps a call of the calculator with its result, and the answer."""
    question = {"role": "user", "content": problem.question}
    answer = {"role": "assistant", "content": f"The answer is {problem.answer}."}
    if not calls:
        return {"messages": [question, answer]}
    arguments = json.dumps({"expression": problem.expression})
    call = {"type": "function", "function": {"name": "calculator", "arguments": arguments}}
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"messages": [question, asked, {"role": "tool", "content": problem.answer, "name": "calculator"}, answer]}


def write_words(
    out: Path,
    train: int,
    test: int,
    seed: int,
    difficulty: str = "medium",
    demonstrations: int = 0,
    call_share: float = 1.0,
    agent_name: str = "tool_agent",
    overwrite: bool = True,
) -> dict[str, Path]:
    """Write `train.parquet` and `test.parquet` with disjoint questions in words, and perhaps demonstrations.

    Args:
        out: folder; created if missing.
        train: training rows.
        test: test rows.
        seed: seed of the generator.
        difficulty: `easy`, `medium` or `hard`.
        demonstrations: how many of the training questions `demonstrations.parquet` answers; 0: no such file.
        call_share: share of the demonstrations that call the calculator; the others only answer.
        agent_name: agent loop of the rows.
        overwrite: replace files that exist.

    Returns:
        The written file of each split.

    Raises:
        UserInputError: more demonstrations than training rows, or too few questions of this difficulty exist.
    """
    if demonstrations > train:
        raise UserInputError(
            f"got {demonstrations} demonstrations, wanted at most {train}: they answer the training rows"
        )
    splits = ("train", "test", "demonstrations") if demonstrations else ("train", "test")
    files = {split: out / f"{split}.parquet" for split in splits}
    keep_existing(list(files.values()), overwrite)
    problems = generate_problems(train + test, seed, difficulty)
    # Early questions are those that are easy to find: without the shuffle, test rows would be the rarer ones.
    random.Random(seed).shuffle(problems)
    rows = {"train": _word_rows(problems[:train], "train", agent_name)}
    rows["test"] = _word_rows(problems[train:], "test", agent_name)
    # Evenly spread: of 8 with a share of .25, the fourth and the eighth call.
    shown = [int((n + 1) * call_share) > int(n * call_share) for n in range(demonstrations)]
    rows["demonstrations"] = [
        demonstration_row(problem, calls) for problem, calls in zip(problems, shown, strict=False)
    ]
    write_parquets({path: rows[split] for split, path in files.items()})
    return files


def _word_rows(problems: Sequence[WordProblem], split: str, agent_name: str) -> list[JsonDict]:
    return [word_row(problem, split, index, agent_name) for index, problem in enumerate(problems)]


def _draw_new(rng: random.Random, seen: set[str]) -> Pair:
    """Draw operators once, then operands until expression and answer fit: the operator mix stays as measured."""
    operators = _choose(rng, OPERATOR_SEQUENCES)
    wants_whole = rng.random() < WHOLE_ANSWERS
    for _ in range(_TRIES_PER_EXPRESSION):
        expression = _draw_expression(rng, operators)
        value = exact_value(expression)
        answer = canonical(value)
        if answer is not None and value >= 0 and (value.denominator == 1) == wants_whole and expression not in seen:
            return expression, answer
        # Differences and sums of whole numbers rarely end in a fraction: do not insist for long.
        wants_whole = wants_whole or rng.random() < 0.02
    raise UserInputError(f"found no new expression with the operators {operators!r}: ask for fewer expressions")


def _draw_expression(rng: random.Random, operators: str) -> str:
    patterns = [_choose(rng, FIRST_OPERAND[operators[0]])] + [_choose(rng, NEXT_OPERAND[o]) for o in operators]
    numbers = [_draw_number(rng, pattern) for pattern in patterns]
    grouped, share = PARENTHESES.get(operators, ("", 0.0))
    if rng.random() < share:
        remaining = iter(numbers)
        return "".join(next(remaining) if char == "n" else char for char in grouped)
    return numbers[0] + "".join(operator + number for operator, number in zip(operators, numbers[1:], strict=True))


def _draw_number(rng: random.Random, pattern: str) -> str:
    """A number of the given pattern. Decimals never end in 0; whole numbers end in zeros as often as measured."""
    whole, _, decimals = pattern.partition(".")
    if decimals:
        left = "0" if whole == "0" else _draw_digits(rng, len(whole), 0)
        return f"{left}.{_draw_decimals(rng, len(decimals))}"
    shares = TRAILING_ZEROS[len(whole)]
    return _draw_digits(rng, len(whole), rng.choices(range(len(shares)), shares)[0])


def _draw_digits(rng: random.Random, count: int, zeros: int) -> str:
    significant = count - zeros
    digits = [rng.randint(1, 9)] + [rng.randint(0, 9) for _ in range(significant - 2)]
    if significant > 1:
        digits.append(rng.randint(1, 9))
    return "".join(map(str, digits)) + "0" * zeros


def _draw_decimals(rng: random.Random, count: int) -> str:
    return "".join(str(rng.randint(0, 9)) for _ in range(count - 1)) + str(rng.randint(1, 9))


def _choose(rng: random.Random, shares: dict[str, float]) -> str:
    return rng.choices(list(shares), list(shares.values()))[0]
