"""`agentrl generate`: prompts in, responses out, through the engines and agent loops of training.

A job is a series of batches. Each batch is a validation of its prompts whose scores are switched off, and is kept when
it is complete (`parts`), so that a job that was stopped goes on after its last finished batch. Every request has a seed
made of the row, the number of the response and the turn: neither order nor batches change what is sampled.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl.config import RunConfig
from agentrl.config.job_run import own_names, run_of
from agentrl.config.jobs import GenerationConfig
from agentrl.config.machine import uses_cuda
from agentrl.config.value_tree import leaves
from agentrl.data.row_pictures import PictureColumns
from agentrl.data_proto import DataProto
from agentrl.errors import DataError, EngineError, FailureBudgetError
from agentrl.files import keep_inputs
from agentrl.inference.fleet import EngineFleet, MakePlaces
from agentrl.jobs.parts import Advance, JobParts, identity_of
from agentrl.jobs.tables import NO_SOURCE, JobTable, prompt_columns
from agentrl.reported import json_of
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.report import causes_of
from agentrl.rollout.setup import RolloutSetup
from agentrl.rollout.trained_tokens import sampled_turns
from agentrl.trainer.stopping import StopGuard
from agentrl.trainer.validation import sample_batch
from agentrl.types import Sample

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_CHANGES_NOTHING = (
    *(
        "rollout.server.",
        "rollout.embedded.",
        "rollout.engine_kwargs.",
        "rollout.outage.",
        "rollout.refill",
        "rollout.max_",
        "rollout.gpu_",
    ),
    *("rollout.tensor_", "rollout.agent.num_workers", "rollout.agent.max_in_flight", "data.output_path", "data.path"),
    *("trainer.backend", "trainer.device", "trainer.n", "ray_init."),
)
"""Keys that may differ between two starts of a job."""

_MARK = b"agentrl.job"
"""Metadata of the output that says which job wrote it."""


class GenerationJob:
    """One job, checked: nothing has started yet.

    Args:
        job: its configuration.
        output: the parquet file to write.

    Raises:
        UserInputError: the rows, the model folder or a plug-in cannot be used.
    """

    def __init__(self, job: GenerationConfig, output: Path) -> None:
        self.config, self.output = job, output
        data = job.data
        assert data.path is not None
        table = JobTable(data.path, data.max_samples)
        keep_inputs([output], table.files)
        table.need({"data.prompt_key": data.prompt_key})
        for key, column in (("response_key", data.response_key), ("facts_key", data.facts_key)):
            if column in table.names and (key == "response_key" or job.has_loop):
                raise DataError(
                    table.files[0], None, column, "a column of this name", f"none: set data.{key} to another name"
                )
        _tell_of_routes(table, job)
        self._raw = raw = not job.has_loop and data.text_prompts == "raw" and table.has_texts(data.prompt_key)
        if raw:
            told = "the column '%s' holds texts: the model continues them, without a chat template (%s)"
            logger.info(told, data.prompt_key, "data.text_prompts=user_message makes each the message of a user")
        self.run: RunConfig = run_of(job, raw_text=raw)
        with own_names():
            self._setup = RolloutSetup.load(self.run)
            self.rows, self.samples = self._read(table)
        self._table = table.table.take(self.rows)
        self._files = table.files

    def generate(self, advance: Advance, *, overwrite: bool = False) -> Path:
        """Generate what is missing, then write the output.

        Args:
            advance: hears how far the job is.
            overwrite: replace the output if it exists.

        Raises:
            UserInputError: the output exists.
            InfrastructureError: the engines failed for good.
            FailureBudgetError: too many responses of a batch failed. In both cases finished batches are kept.
            KeyboardInterrupt: Ctrl-C or SIGTERM; the same.
        """
        with JobParts(self.output, self._identity(), overwrite=overwrite) as parts, StopGuard(), own_names():
            done = [parts.read(number) for number in range(len(self._starts()))]
            if None in done:
                self._fill(done, parts, advance)
            columns = [row for batch in done for row in batch or ()]
            parts.finish((self.output, lambda path: self._write(path, columns)))
        return self.output

    def is_done(self) -> bool:
        """Whether the output exists and is this job's: a stopped evaluation goes on with it."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            metadata = pq.read_schema(self.output).metadata or {}
        except (OSError, pa.ArrowException):
            return False
        return metadata.get(_MARK) == self._mark()

    def _mark(self) -> bytes:
        return json.dumps(json_of(self._identity()), sort_keys=True).encode()

    def _starts(self) -> range:
        return range(0, len(self.samples), self.config.data.batch_size)

    def _fill(self, done: list[Any], parts: JobParts, advance: Advance) -> None:
        """Generate the batches that are missing."""
        size, total = self.config.data.batch_size, len(self.samples)
        kept = sum(min(size, total - number * size) for number, batch in enumerate(done) if batch is not None)
        count = kept
        advance(count, total, kept)
        with _Engines(self.run, parts.folder / "logs") as engines:
            for number, start in enumerate(self._starts()):
                if done[number] is not None:
                    continue
                samples = self.samples[start : start + size]
                done[number] = self._batch(engines, samples, start)
                parts.keep(number, done[number])
                count += len(samples)
                advance(count, total, kept)

    def _batch(self, engines: _Engines, samples: Sequence[Sample], start: int) -> list[dict[str, Any]]:
        """For each row its `responses`, and with an agent loop its `facts`; None: one that failed."""
        n = self.config.data.n_samples
        batch = sample_batch(samples, n, step=0, weight_version=None, validate=True, first_group=start)
        batch.meta_info["seeded"] = True
        done = engines.generate(batch)
        texts: list[str | None] = [None] * len(batch)
        facts: list[str | None] = [None] * len(batch)
        for place, row in enumerate(done.non_tensor_batch["row"]):
            texts[row] = self._text(done, place)
            facts[row] = _facts_of(done, place) if self.config.has_loop else None
        if done.meta_info["failures"]:
            failures = done.meta_info["failures"]
            logger.warning("%d of %d responses failed and are null:%s", len(failures), len(batch), causes_of(failures))
        return [
            {"responses": texts[place : place + n], "facts": facts[place : place + n]}
            for place in range(0, len(batch), n)
        ]

    def _text(self, done: DataProto, place: int) -> str:
        """What the model said, turn by turn: exactly the tokens with mask 1, as the score function gets it."""
        ids = done.batch["responses"][place].tolist()
        mask = done.batch["response_mask"][place].numpy().astype(np.int8)
        return "\n".join(self._setup.renderer.decode(ids[begin:end]) for begin, end in sampled_turns(mask))

    def _write(self, path: Path, rows: Sequence[dict[str, Any]]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kind = pa.list_(pa.string())
        table: pa.Table = self._table.append_column(
            self.config.data.response_key, pa.array([row["responses"] for row in rows], kind)
        )
        if self.config.has_loop:
            table = table.append_column(self.config.data.facts_key, pa.array([row["facts"] for row in rows], kind))
        metadata = {**(table.schema.metadata or {}), _MARK: self._mark()}
        pq.write_table(table.replace_schema_metadata(metadata), path)

    def _read(self, table: JobTable) -> tuple[list[int], list[Sample]]:
        """The rows that are used, each checked: its cells, its routing and the length of its prompt."""
        data, most = self.config.data, self._setup.limits.prompt_length
        columns = prompt_columns(data.prompt_key, routed=self.config.has_loop)
        pictures = PictureColumns() if self._setup.renderer.vision is not None else None
        rows, samples = [], []
        for number in range(len(table)):
            if pictures is None:
                table.refuse_media(number)
            sample = table.sample(number, columns, source=NO_SOURCE, pictures=pictures)
            if self._raw:  # also a text that could be read as messages
                sample = replace(sample, prompt=[{"role": "user", "content": table.row(number)[data.prompt_key]}])
            self._setup.check_rows([sample])
            count = len(self._setup.prompt_ids(sample))
            if count <= most:
                rows.append(number)
                samples.append(sample)
            elif not data.filter_overlong_prompts:
                file, place = table.place(number)
                wanted = f"at most {most} (rollout.prompt_length); or set data.filter_overlong_prompts=true"
                raise DataError(file, place, data.prompt_key, f"{count} tokens", wanted)
        if not rows:
            raise DataError(
                ", ".join(table.files), None, None, f"only prompts over {most} tokens", "a larger rollout.prompt_length"
            )
        if len(rows) < len(table):
            logger.warning("left out %d of %d rows: prompts over %d tokens", len(table) - len(rows), len(table), most)
        return rows, samples

    def _identity(self) -> dict[str, Any]:
        """Everything that the responses depend on."""
        settings = dict(leaves(self.config.model_dump(mode="json")))
        sections = ("data.", "model.", "rollout.", "trainer.", "plugins")
        counts = {
            key: value
            for key, value in settings.items()
            if key.startswith(sections) and not key.startswith(_CHANGES_NOTHING)
        }
        turns, agent = self.config.rollout.multi_turn, self.config.rollout.agent
        named = (turns.tool_config_path, turns.interaction_config_path, agent.agent_loop_config_path)
        files = [*self._files, *(file for file in named if file)]
        return counts | {"an agent loop": self.config.has_loop} | identity_of(files, self.config.model.path)


def _tell_of_routes(table: JobTable, job: GenerationConfig) -> None:
    """Say what rows ask for that this job does otherwise: their own loop, tools and interaction."""
    rows, default = table.routes(), job.rollout.agent.default_agent_loop
    if not job.has_loop:
        if rows:
            told = (
                "the rows name %s, which have no effect here: without --agent-loop a prompt gets one answer, no tools"
            )
            logger.warning(told, ", ".join(rows))
        return
    names = table.table.column("agent_name").to_pylist() if "agent_name" in table.names else []
    if others := sorted({name for name in names if name not in (None, "", default)}):
        logger.warning("rows with an `agent_name` keep it (%s); %s is for those without", ", ".join(others), default)


class _Engines:
    """The engines of a job and the agent loops that use them; a context manager."""

    def __init__(self, run: RunConfig, logs: Path) -> None:
        self._run, self._logs = run, logs
        self._stack = ExitStack()

    def __enter__(self) -> _Engines:
        try:
            first = self._run.ray_init.address is not None  # engines are then on its machines
            places = self._start_ray() if first else None
            self._servers = self._stack.enter_context(EngineFleet.start(self._run, self._logs, make_places=places))
            if not first:
                self._start_ray()
            self._manager = AgentLoopManager(self._run, self._servers.addresses)
            self._stack.callback(self._manager.shutdown)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def _start_ray(self) -> MakePlaces | None:
        """Start Ray or connect to it; what makes the places of engines, if its machines are several."""
        if self._run.trainer.backend != "ray":
            return None
        from agentrl.inference.ray_hosts import ray_places
        from agentrl.single_controller import ray_machines, ray_runtime

        ray = self._run.ray_init
        session = ray_runtime.init_ray(ray.num_cpus, ray.address, timeline=ray.timeline_json_file)
        self._stack.enter_context(session)
        return ray_places if ray_machines.several() and not uses_cuda(self._run) else None

    def generate(self, batch: DataProto) -> DataProto:
        """Roll out; if an engine died meanwhile, restart it and roll out once more."""
        try:
            return self._manager.generate_sequences(batch)
        except (EngineError, FailureBudgetError) as error:
            restarts = self._servers.restarts
            well = self._servers.tend()
            if self._servers.restarts == restarts and set(well) == set(self._servers.addresses):
                raise
            logger.warning("generating this batch again after: %s", error)
            self._manager.set_addresses(well)
            return self._manager.generate_sequences(batch)


def _facts_of(done: DataProto, place: int) -> str:
    """What a score function is told of a trajectory besides its text, as JSON."""
    fields = {name: done.non_tensor_batch[name][place] for name in ("num_turns", "num_tool_calls", "messages")}
    return json.dumps(json_of({**done.non_tensor_batch["extra_fields"][place], **fields}), ensure_ascii=False)
