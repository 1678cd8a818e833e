"""One controller, many workers: the trainer calls a method of a `WorkerGroup` and every rank runs it.

* `worker.py`: `Worker`, the base class of a rank.
* `decorator.py`: `@register(dispatch_mode, execute_mode)` says which ranks run a method, and on what.
* `worker_group.py`: `create_worker_group`, the facade with one bound method per registered method.
* `ray_backend.py`, `local_backend.py`: where ranks live: Ray actors, or this process.
* `ray_runtime.py`: `init_ray`, a private or an existing Ray cluster.

Importing this package does not import Ray.
"""

from agentrl.single_controller.decorator import Dispatch, Execute, register
from agentrl.single_controller.resource_pool import ResourcePool, cores
from agentrl.single_controller.worker import Placement, Worker
from agentrl.single_controller.worker_group import WorkerFuture, WorkerGroup, create_worker_group

__all__ = [
    "Dispatch",
    "Execute",
    "Placement",
    "ResourcePool",
    "Worker",
    "WorkerFuture",
    "WorkerGroup",
    "cores",
    "create_worker_group",
    "register",
]
