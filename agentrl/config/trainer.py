"""`trainer` and `ray_init`: the run's length, machines, logs and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from agentrl.config.base import InputPath, Names, OutputPath, Section
from agentrl.config.health import HealthConfig

DEFAULT_POOL = "global_pool"
"""The pool of `trainer.nnodes` and `n_gpus_per_node`."""
MOST_MACHINES, MOST_RANKS = 1000, 1024
"""Of a run, and ranks of a machine: a number with a zero too many would fill the memory with places for ranks."""


class RolePools(Section):
    """The pool of each model that is trained or asked: a name of `trainer.resource_pools`, or `global_pool`."""

    actor: str = DEFAULT_POOL
    """The policy."""
    ref: str = DEFAULT_POOL
    """The reference policy."""
    critic: str = DEFAULT_POOL
    """The value model."""
    reward_model: str = DEFAULT_POOL
    """The reward model."""


class TrainerConfig(Section):
    """The run: its length, machines, logs and checkpoints."""

    backend: Literal["ray", "local"] = "ray"
    """Where workers run: in Ray actors, or in this process."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of training and engines; auto: cuda if available."""
    nnodes: int = Field(default=1, ge=1, le=MOST_MACHINES)
    """Number of machines."""
    n_gpus_per_node: int = Field(default=1, ge=1, le=MOST_RANKS)
    """Training ranks per machine (processes on CPU)."""
    resource_pools: dict[str, Any] = Field(default_factory=dict)
    """Pools of ranks by name, beside `global_pool`, which has `nnodes` x `n_gpus_per_node`: `{nnodes: 1, n_gpus: 2}`
    with the ranks of each machine (`n_gpus_per_node` says the same), or a list of the ranks of every machine, `[2, 2]`
    (`process_on_nodes`)."""
    role_pools: RolePools = Field(default_factory=RolePools)
    """The pool of each role. Roles in one pool share its GPUs and take turns; roles in different pools compute at the
    same time."""
    total_epochs: int = Field(default=1, ge=1)
    """Passes over the training rows."""
    total_training_steps: int | None = Field(default=None, ge=1)
    """Number of steps; null: as many as `total_epochs` gives."""
    project_name: str = "agentrl"
    """Name of the project in the trackers."""
    experiment_name: str = "default"
    """Name of the run in the trackers."""
    logger: Names = Field(default_factory=lambda: ["console", "jsonl"])
    """`console`, `jsonl`, `tensorboard`, `wandb`, `mlflow`; a single name needs no list."""
    default_local_dir: OutputPath = "outputs/${trainer.project_name}/${trainer.experiment_name}"
    """Run folder: resolved config, checkpoints, logs."""
    rollout_data_dir: OutputPath | None = None
    """Folder for rollout dumps, one jsonl per step; null: no dumps."""
    validation_data_dir: OutputPath | None = None
    """Folder for validation dumps; null: no dumps."""
    log_val_generations: int = Field(default=0, ge=0)
    """Number of validation conversations sent to the trackers."""
    log_train_generations: int = Field(default=0, ge=0)
    """Number of conversations of each training step sent to the trackers."""
    health: HealthConfig = Field(default_factory=HealthConfig)
    """Alarms for a run that goes wrong while its reward still looks fine."""
    val_before_train: bool = True
    """Validate before the first step."""
    val_only: bool = False
    """Validate, then stop."""
    test_freq: int = -1
    """Validate every `test_freq` steps and after the last step; -1: never."""
    save_freq: int = -1
    """Save a checkpoint every `save_freq` steps and after the last step; -1: never."""
    max_ckpt_to_keep: int | None = Field(default=None, ge=1)
    """Number of checkpoints to keep; null: all."""
    async_save: bool = False
    """Go on with the next step while a checkpoint is written: a step waits only until weights and optimizer are copied
    to host memory. The checkpoint counts when it is whole; an error of its writing ends the run at the end of a
    step."""
    max_skipped_steps: int | None = Field(default=20, ge=1)
    """The run stops after this many steps in a row that changed no weight: no gradient was finite, or no trajectory was
    left to train on; null: never."""
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    """auto: resume from the newest checkpoint in the run folder, if it has one; disable: always start from the
    beginning; resume_path: resume from `resume_from_path`."""
    resume_from_path: InputPath | None = None
    """Checkpoint folder (`…/global_step_N`) for `resume_mode: resume_path`."""
    profile_steps: list[int] | None = None
    """Steps that are profiled, from 1 on; null: none."""
    profile_tool: Literal["auto", "torch", "nsys", "torch_memory", "spans"] = "auto"
    """torch: a Chrome trace of each process; nsys: a cudaProfilerApi window in each rank, for Nsight; torch_memory: a
    history of each rank's GPU memory; spans: one Chrome trace of what trajectories and all processes spend their time
    on; auto: nsys under `nsys profile`, else torch."""
    profile_dir: OutputPath | None = None
    """Folder of what a profiled step writes; null: `profile` in the run folder."""
    otlp_endpoint: str | None = None
    """Address of an OpenTelemetry collector, such as http://localhost:4318, that gets the spans of every step; null:
    the one that `OTEL_EXPORTER_OTLP_ENDPOINT` names, if any."""
    prometheus_address: int | str | None = None
    """Where Prometheus finds the metrics of trainer, routers and engines: a port of this machine, or host:port, such as
    0.0.0.0:9400 for all machines that reach this one; null: nowhere."""
    critic_warmup: int = Field(default=0, ge=0)
    """Number of first steps in which only the critic learns."""
    balance_batch: bool = True
    """Give every rank about the same number of tokens."""
    deterministic: bool = False
    """Get the same numbers in every run: a seed per request, and an engine that does not depend on batching. Slower."""
    seed: int = 1
    """Seed of initialisation and sampling."""
    threads_per_rank: int | None = Field(default=None, ge=1)
    """CPU threads of a training rank; null: the cores that the run may use, divided by the ranks that compute at the
    same time (1 in deterministic mode). Engines wait while ranks compute, so they are not counted."""

    def profile_file(self, step: int, process: str) -> Path:
        """What a process writes about a profiled step, without its suffix."""
        return Path(self.profile_dir or f"{self.default_local_dir}/profile") / f"step_{step}" / process

    @property
    def prometheus_host_port(self) -> tuple[str, int] | None:
        """`prometheus_address` as host and port: 9400 -> ("127.0.0.1", 9400), [::]:9400 -> ("::", 9400).

        Raises:
            ValueError: it is not an address; `machine_checks.check_watchers` has refused it before.
        """
        if self.prometheus_address is None:
            return None
        host, _, port = str(self.prometheus_address).rpartition(":")
        return host.strip("[]") or "127.0.0.1", int(port)


class RayInitConfig(Section):
    """`ray.init`."""

    num_cpus: int | None = Field(default=None, ge=1)
    """CPUs that Ray may use; null: all."""
    address: str | None = None
    """Address of a running cluster; null: start a private one for this run."""
    timeline_json_file: OutputPath | None = None
    """File for Ray's timeline, a Chrome trace of all calls of the run, written when the run ends; null: none."""
