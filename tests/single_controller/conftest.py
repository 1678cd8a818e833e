from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentrl.single_controller.ray_runtime import RaySession, init_ray


@pytest.fixture(scope="module")  # "package" would keep Ray to the end of the session
def ray_session() -> Iterator[RaySession]:
    # The GPUs are only numbers here: no test that uses them touches a device.
    with init_ray(num_cpus=2, num_gpus=2) as session:
        yield session
