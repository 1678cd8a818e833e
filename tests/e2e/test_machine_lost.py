"""A run on two machines loses one in a step: it says which, saves, ends and leaves nothing; engines are moved."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import psutil
import pytest
from acting_tracker import At
from machines import Machines, machines
from runs import Workspace
from test_pools_train import machines_of, trainer_of

from agentrl.errors import WorkerError
from agentrl.trainer.checkpoint import LATEST

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture
def cluster() -> Iterator[Machines]:
    with machines({"num_cpus": 2}, {"num_cpus": 1}) as cluster:
        yield cluster


def test_a_machine_is_lost_in_a_step(workspace: Workspace, cluster: Machines, caplog: pytest.LogCaptureFixture) -> None:
    """The two ranks of the actor are on the first machine, its reference on the second; both have an engine.

    In step 2 the second one goes down: rollouts go on, on the engine that is left, with new agent-loop workers in place
    of those that are lost; without its reference the step cannot end. Step 1 is saved.
    """
    before = set(psutil.process_iter())  # of other tests
    run = workspace.run(
        "two_machines",
        actor_rollout_ref__actor__use_kl_loss=True,
        actor_rollout_ref__rollout__server__launch=2,
        actor_rollout_ref__rollout__agent__num_workers=2,
        trainer__backend="ray",
        ray_init__address=cluster.address,
        ray_init__num_cpus=None,
        trainer__n_gpus_per_node=2,
        trainer__resource_pools={"second": [1]},
        trainer__role_pools={"ref": "second"},
        trainer__total_training_steps=3,
        trainer__save_freq=1000,
    )
    seen: list[set[str]] = []

    def lose() -> None:
        processes = trainer.processes
        seen.extend(machines_of(group) for group in processes.groups)
        addresses.extend(processes.servers.addresses)
        cluster.lose(1)

    addresses: list[str] = []
    trainer = trainer_of(run, At(2, "gen", lose))
    with caplog.at_level(logging.WARNING), pytest.raises(WorkerError) as caught:
        trainer.fit()
    lost = r"machine 127.0.0.2 (Ray node "
    assert f"rank 0 of 1 (ActorRolloutRefWorker) died in compute_ref_log_prob: {lost}" in str(caught.value)
    assert caught.value.exit_code == 3
    (actor, reference) = seen
    assert actor != reference
    assert [address.startswith("http://127.0.0.2:") for address in addresses] == [False, True]
    assert (run.folder / LATEST).read_text() == "1"
    assert len(run.metrics) == 1
    assert "saving step 1 before the run ends" in caplog.text
    assert f"died: {lost}" in caplog.text
    assert "a new worker takes its place" in caplog.text
    assert {each for each in psutil.process_iter() if str(workspace.model) in _command(each)} <= before
    assert not list(run.folder.glob(".agentrl-probe-*"))
    assert not list((run.folder / "weights").glob("*"))


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) if process.ppid() else ""
    except psutil.Error:
        return ""
