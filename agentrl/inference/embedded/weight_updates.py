"""Weights that come over a process group, through shared memory or as handles of GPU memory, by SGLang's requests.

Between `/begin_weight_update` and `/end_weight_update` an engine takes bucket after bucket. Outside of that it refuses
them, as SGLang does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from agentrl.errors import UserInputError
from agentrl.inference.embedded.http import Handler, answer, read_object
from agentrl.inference.weights.buckets import TensorSpec, from_fields, total_bytes, unflatten
from agentrl.inference.weights.group import BACKENDS, UpdateGroup, join_store
from agentrl.inference.weights.handles import read_handles
from agentrl.inference.weights.shared_memory import read_shared
from agentrl.plugins.threads import call_in_thread
from agentrl.types import JsonDict

TIMEOUT_S = 1800.0
"""How long to wait for the other ranks of a group; a trainer that leaves ends the wait at once."""
Update = Callable[[JsonDict, Callable[[Any], None]], Awaitable[Response]]
"""Applies weights between two steps and answers: `Admin.update`."""
_BUCKET = ("names", "dtypes", "shapes", "load_format", "flush_cache", "weight_version", "abort_all_requests")


@dataclass(slots=True)
class WeightUpdates:
    """The routes.

    Args:
        device: of the model.
        update: applies weights.
    """

    device: torch.device
    update: Update
    groups: dict[str, UpdateGroup]
    is_open: bool = False
    """Between begin and end."""

    def routes(self, from_tensor: Handler) -> dict[tuple[str, str], Handler]:
        """Handlers by method and path.

        Args:
            from_tensor: `/update_weights_from_tensor` with the tensors in the request.
        """
        table: dict[str, Handler] = {
            "/begin_weight_update": self.begin,
            "/end_weight_update": self.end,
            "/init_weights_update_group": self.init_group,
            "/destroy_weights_update_group": self.destroy_group,
            "/update_weights_from_distributed": self.from_group,
            "/update_weights_from_tensor": partial(self.from_memory, from_tensor),
        }
        return {("POST", path): handler for path, handler in table.items()}

    async def begin(self, request: HTTPRequest) -> Response:
        """Open an update."""
        await read_object(request, ("selector",))
        if self.is_open:
            return _refusal("a weight-update session is already open; call end_weight_update() first")
        self.is_open = True
        return _done("Success")

    async def end(self, request: HTTPRequest) -> Response:
        """Close it."""
        await read_object(request, ())
        if not self.is_open:
            return _refusal("no weight-update session is open; call begin_weight_update() first")
        self.is_open = False
        return _done("Success")

    async def init_group(self, request: HTTPRequest) -> Response:
        """Join a process group; the answer comes when all of its ranks have."""
        keys = ("master_address", "master_port", "rank_offset", "world_size", "group_name", "backend")
        body = await read_object(request, keys)
        name, backend = body.get("group_name"), body.get("backend", "nccl")
        if not isinstance(name, str) or not name:
            raise UserInputError(f"group_name: got {name!r}, wanted a text")
        if BACKENDS.get(backend) != self.device.type:
            raise UserInputError(f"backend: got {backend!r}, but the engine's weights are on {self.device.type}")
        numbers = {key: body.get(key) for key in ("master_port", "rank_offset", "world_size")}
        if not isinstance(body.get("master_address"), str) or not all(isinstance(n, int) for n in numbers.values()):
            raise UserInputError(f"master_address and numbers: got {body.get('master_address')!r}, {numbers}")

        def join() -> UpdateGroup:
            store = join_store(body["master_address"], body["master_port"], TIMEOUT_S)
            return UpdateGroup(
                store,
                name,
                rank=body["rank_offset"],
                world_size=body["world_size"],
                backend=backend,
                timeout_s=TIMEOUT_S,
            )

        try:
            self.groups[name] = await call_in_thread(join)
        except (RuntimeError, UserInputError) as error:
            return _refusal(f"Failed to initialize custom process group: {error}.")
        return _done("Succeeded to initialize custom process group.")

    async def destroy_group(self, request: HTTPRequest) -> Response:
        """Leave a process group."""
        name = (await read_object(request, ("group_name",))).get("group_name")
        group = self.groups.pop(name, None) if isinstance(name, str) else None
        if group is None:
            return _refusal("The group to be destroyed does not exist.")
        group.leave()
        return _done("Succeeded to destroy custom process group.")

    async def from_group(self, request: HTTPRequest) -> Response:
        """Receive a bucket that rank 0 of the group broadcasts, and load it."""
        body = await read_object(request, ("group_name", "selector", *_BUCKET))
        if not self.is_open:
            return _closed("update_weights_from_distributed")
        group = self.groups.get(str(body.get("group_name")))
        if group is None:
            return _refusal(
                f"Failed to receive weights: Group {body.get('group_name')} not in {list(self.groups)}. Please call "
                "`init_weights_update_group` first."
            )
        specs = from_fields(body.get("names"), body.get("dtypes"), body.get("shapes"))
        whole = body.get("load_format") == "flattened_bucket"

        def receive() -> list[tuple[str, torch.Tensor]]:
            if whole:
                flat = torch.empty(total_bytes(specs), dtype=torch.uint8, device=self.device)
                group.broadcast(flat, TIMEOUT_S)
                return list(unflatten(flat, specs))
            tensors = [(s.name, torch.empty(s.shape, dtype=s.dtype, device=self.device)) for s in specs]
            for _, tensor in tensors:
                group.broadcast(tensor, TIMEOUT_S)
            return tensors

        try:
            received = await call_in_thread(receive)
        except RuntimeError as error:
            return _refusal(f"Failed to receive weights: {error}")
        return await self.update(body, lambda model: model.load_tensors(dict(received)))

    async def from_memory(self, from_tensor: Handler, request: HTTPRequest) -> Response:
        """Load a bucket from shared memory, on a GPU from memory that a handle names, or tensors in the request."""
        body = await read_object(request, ("shared_memory", "serialized_named_tensors", "selector", *_BUCKET))
        shared, lent = body.get("load_format") == "shared_memory", self._is_lent(body)
        if not shared and not lent:
            return await from_tensor(request)
        if not self.is_open:
            return _closed("update_weights_from_tensor")
        if lent:
            return await self.update(body, partial(self._load_lent, body["serialized_named_tensors"][0]))
        specs: Sequence[TensorSpec] = from_fields(body.get("names"), body.get("dtypes"), body.get("shapes"))
        flat = read_shared(body.get("shared_memory"), total_bytes(specs))
        return await self.update(body, lambda model: model.load_tensors(dict(unflatten(flat, specs))))

    def _is_lent(self, body: JsonDict) -> bool:
        """Whether the request holds handles of GPU memory, as SGLang takes them: one for each rank, and here is one."""
        handles = body.get("serialized_named_tensors")
        on_gpu = self.device.type == "cuda" and body.get("load_format") is None
        return on_gpu and isinstance(handles, list) and len(handles) == 1

    def _load_lent(self, handles: object, model: Any) -> None:
        """In the engine's thread. The answer gives the memory back, so nothing may read it any more by then."""
        model.load_tensors(read_handles(handles))
        torch.cuda.synchronize(self.device)


def _done(message: str) -> Response:
    return answer({"success": True, "message": message})


def _refusal(message: str) -> Response:
    return answer({"success": False, "message": message}, 400)


def _closed(call: str) -> Response:
    return _refusal(f"{call} must run between begin_weight_update() and end_weight_update()")
