"""Every command and every piece of code in the user's guide works as written, page by page, top to bottom."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_endpoint import judging
from needs import needs
from pages import blocks, run_page
from service_process import serve
from warm_commands import warm_commands

from agentrl.rollout.pools.local import LoopThread
from agentrl.testing.models import build_tiny_classifier, build_tiny_model, byte_tokenizer
from agentrl.testing.scripted_engine import ScriptedEngine

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (
    "README.md",
    "docs/quickstart.md",
    "docs/engines.md",
    "docs/python_api.md",
    "docs/data.md",
    "docs/vision.md",
    "docs/sft.md",
    "docs/lora.md",
    "docs/generate_eval.md",
    "docs/write_a_tool.md",
    "docs/write_an_interaction.md",
    "docs/agent_loops.md",
    "docs/write_an_agent_loop.md",
    "docs/port_from_verl.md",
    "docs/testing_plugins.md",
    "docs/rewards.md",
    "docs/algorithms.md",
    "docs/services.md",
    "docs/trackers.md",
    "docs/viewer.md",
    "docs/terminal.md",
    "docs/placement.md",
    "docs/gpus.md",
    "docs/checkpoints.md",
    "docs/parallelism.md",
    "docs/profiling.md",
    "docs/traces.md",
    "docs/training_guide.md",
    "docs/token_rules.md",
)
SAID = {
    "docs/lora.md": (
        "# LoRA:          actor_rollout_ref: 3,584 parameters learn and 27,072 are frozen (11.69 %), adapters on",
        *("outputs/lora/global_step_1/actor/lora_adapter -> merged_model", "adapter_for_peft -> merged_again"),
    ),
    "docs/placement.md": (
        "# training:      2 pools, 2 + 1 = 3 ranks in Ray actors, cpu, FSDP2, float32",
        *("# pool global_pool: 2 ranks on 1 machine; actor, reference", "# pool values:   1 rank on 1 machine; critic"),
        "# pool values:   2 ranks on 1 machine; reference, critic",
    ),
    "docs/gpus.md": (
        "engines:       4 sglang servers of 2 GPUs on the GPUs of global_pool, in turns, free ports",
        "machine 0:     ranks of global_pool on GPUs 0-7; engines on 0-1, 2-3, 4-5, 6-7",
        *(
            "7.62 billion x 16 = 113.5 GiB. It fits on 2 machines",
            "got 3, but it does not divide the 8 ranks of a machine",
        ),
    ),
    "docs/checkpoints.md": (
        *("resumed after step 1", "resumed after step 2", "random_state_rank_0.pt"),
        *(
            "outputs/run/global_step_2/actor/huggingface -> my_model",
            "global_step_1/actor/huggingface -> my_first_model",
        ),
    ),
    "docs/traces.md": ("turn 1", "outcome", "trace.json"),
    "docs/algorithms.md": ("contract of advantages", "contract of policy_losses"),
    "docs/vision.md": (
        *("train: 32 rows in outputs/pictures/train.parquet", "Which colour is the square?"),
        "# pictures:      32 in 32 rows, up to 1 in a row; prompts with pictures take up to",
    ),
    "docs/parallelism.md": ("actor (shard 2 x sp 2 x tp 2), critic (replicate 2 x shard 4)",),
    "docs/generate_eval.md": (
        *("4 prompts with 4 responses each in outputs/responses.parquet", "mean@4", "pass@2", "maj@4", "95 % interval"),
        "result: outputs/model.json",
    ),
    "docs/data.md": ("train: 1 rows in outputs/math/train.parquet", "index the corpus with: agentrl data index corpus"),
    "docs/terminal.md": (
        *("│ finished │  1/1 │", '"state": "finished"', "failed, so left out of training: 0"),
        *("actor_rollout_ref.rollout.temperature", "mean ± deviation of the last 5 steps", "95 % interval"),
        *("4 conversations of 1 dump, scored by strict.py", "2 groups: the order changes in", "ok    models and rows"),
    ),
    "docs/services.md": (
        *('"id":"sample-1"', "Apollo 11", "agentrl_retrieval_queries_total 3.0", '"service":"retrieval"'),
        *("bm25 index of 2 documents", '"out.txt":"YQpiCg=="', '"bash":"', '"pong"', '"text/plain":"6"'),
        *('"verdict":"Passed"', '"service":"sandbox"', '"stdout":"42\\n"'),
    ),
}
"""What the commands of a page print, besides ending well."""
PAGES = [page for page in GUIDE if (ROOT / page).is_file()]
MINUTES = ("docs/checkpoints.md",)
"""Pages whose commands train several times."""
MY_RUN = """
data: {train_files: rows.parquet, max_prompt_length: 1400, max_response_length: 256, train_batch_size: 2}
actor_rollout_ref:
  model: {path: MODEL}
  actor: {ppo_mini_batch_size: 2}
  rollout:
    n: 2
    agent: {default_agent_loop: tool_agent}
    multi_turn: {tool_config_path: tools/calculator.yaml, max_assistant_turns: 2}
trainer: {total_training_steps: 1, backend: local, default_local_dir: outputs/my_run, logger: [jsonl]}
"""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages call `MODEL`."""
    return build_tiny_model(tmp_path_factory.mktemp("docs") / "MODEL")


@pytest.fixture(scope="session")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What docs/rewards.md calls `RM`."""
    return build_tiny_classifier(tmp_path_factory.mktemp("docs") / "RM")


@pytest.fixture
def folder(tmp_path: Path, model: Path, reward_model: Path) -> Path:
    """Where a reader stands: the checkout, with a model, GSM8K's files, rows and a recipe of their own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("configs", "examples", "docs", "benchmarks"):  # copies: a page may write to them
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
        )
    (tmp_path / "MODEL").symlink_to(model)
    (tmp_path / "RM").symlink_to(reward_model)
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    gsm8k = tmp_path / "GSM8K"
    gsm8k.mkdir()
    question = {"question": "What is 40 + 2?", "answer": "40 + 2 = <<40+2=42>>42\n#### 42"}
    for split in ("train", "test"):
        (gsm8k / f"{split}.jsonl").write_text((json.dumps(question) + "\n") * 8)
    row = {
        "prompt": [{"role": "user", "content": "40 + 2"}],
        "data_source": "agentrl/arithmetic",
        "reward_model": {"style": "rule", "ground_truth": "42"},
    }
    pq.write_table(pa.Table.from_pylist([row] * 4), tmp_path / "rows.parquet")
    (tmp_path / "outputs" / "demo" / "data").mkdir(parents=True)  # what `make demo` leaves, besides its model
    (tmp_path / "outputs" / "demo" / "data" / "test.parquet").symlink_to(tmp_path / "rows.parquet")
    (tmp_path / "my_run.yaml").write_text(MY_RUN)
    talk = [{"role": "user", "content": "40 + 2"}, {"role": "assistant", "content": "42"}]
    pq.write_table(pa.Table.from_pylist([{"messages": talk}] * 32), tmp_path / "demonstrations.parquet")
    pq.write_table(pa.Table.from_pylist([{"extra_info": question}] * 32), tmp_path / "gsm8k_sft.parquet")
    return tmp_path


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    """An engine that answers at once, for the pages' trainings."""
    tokenizer = byte_tokenizer()
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "40+2"}}\n</tool_call>'
    texts = {True: call, False: "The answer is 42"}
    turns = {k: [*tokenizer.encode(v, add_special_tokens=False), tokenizer.eos_token_id] for k, v in texts.items()}

    def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
        """Call the calculator first where the prompt offers it, then answer."""
        offered = '"name": "calculator"' in tokenizer.decode(payload["input_ids"])
        ids = turns[offered and payload["rid"].endswith("-0")]
        budget = payload["sampling_params"]["max_new_tokens"]
        return (ids, "stop") if len(ids) <= budget else (ids[:budget], "length")

    thread, server = LoopThread("scripted-engine"), ScriptedEngine(respond)
    yield thread.submit(server.start()).result(10)
    thread.submit(server.stop()).result(10)
    thread.stop()


@pytest.fixture
def environment() -> dict[str, str]:
    """The warm commands come first."""
    return {**os.environ, "PATH": f"{warm_commands()}:{os.environ['PATH']}", "COLUMNS": "100"}


@pytest.fixture
def addresses(page: str) -> Iterator[dict[str, str]]:
    """The services of the pages that are about them, started as they say."""
    if page == "docs/rewards.md":
        with judging(lambda _, text: f"score: {int('42' in text.rpartition('Answer:')[2])}") as judge:
            yield {"http://127.0.0.1:8001/v1": judge.url}
        return
    if page != "docs/services.md":
        yield {}
        return
    needs("curl")
    with serve("retrieval") as retrieval, serve("sandbox") as sandbox:
        yield {"http://127.0.0.1:8000": retrieval.url, "http://127.0.0.1:8080": sandbox.url}


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow if page in MINUTES else ()) for page in PAGES]
)
def test_a_page_works_as_written(
    page: str, folder: Path, environment: dict[str, str], engine: str, addresses: dict[str, str]
) -> None:
    rollout = "actor_rollout_ref.rollout"
    overrides = f"{rollout}.name=embedded '{rollout}.server.addresses=[{engine}]' trainer.backend=local"
    printed = run_page(ROOT / page, folder, environment, overrides, addresses)
    assert printed
    missing = [text for text in SAID.get(page, ()) if text not in "".join(printed)]
    assert not missing, f"{missing} not in {printed}"


def test_few_blocks_are_left_out() -> None:
    every = [block for page in PAGES for block in blocks(ROOT / page)]
    left_out = [block for block in every if block.not_run is not None]
    assert len(left_out) <= len(every) // 4


LINKING = ("README.md", "CONTRIBUTING.md", "examples/plugin/README.md")
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*(ROOT / name for name in LINKING), *sorted((ROOT / "docs").glob("*.md"))]:
        for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name} links to {target}, which does not exist"
            assert not anchor or anchor in anchors(there), f"{page.name} links to {target}#{anchor}, no heading"
