"""Every exception that agentrl raises on purpose, as one tree.

::

    AgentRLError                      exit code 1
    ├── UserInputError                exit code 2: the user's input cannot be used; nothing has run yet
    │   ├── ConfigError               run YAML or an override
    │   ├── DataError                 a dataset file or row
    │   ├── PluginError               a tool, interaction, agent loop or score function cannot be found or built
    │   ├── PictureError              a picture cannot be read, or the model sees none
    │   └── TemplateError             a model folder's tokenizer or chat template
    ├── TokenStreamError              a token rule would break: a bug, never the model's fault
    ├── DataProtoError                rows or columns that do not belong together: a bug in the calling code
    ├── RewardError                   a score function failed
    ├── InfrastructureError           exit code 3: something around the model failed; never a reward
    │   ├── EngineError               the inference engine
    │   │   ├── EngineUnavailable     no connection, 5xx, killed
    │   │   ├── EngineTimeout         no answer in time
    │   │   ├── EngineRequestError    the engine refused the request (4xx)
    │   │   └── WeightVersionError    the engine serves weights other than those asked for
    │   ├── ToolServiceError          a tool's service failed after its retries
    │   ├── ServiceDownError          a trajectory was not started: a service that it needs stays down
    │   └── WorkerError               a training worker died
    ├── FailureBudgetError            exit code 3: more failures in a step than `rollout.max_failure_rate`
    ├── HealthError                   exit code 3: an alarm of `trainer.health`, or steps that change no weight
    └── CheckpointError               exit code 4: a checkpoint cannot be written or read

Errors for the model are values, not exceptions: see `agentrl.types.ToolResponse`. The token rules: docs/token_rules.md.
"""

from __future__ import annotations

import difflib
import re
import reprlib
import traceback
from collections.abc import Iterable
from typing import Any


class AgentRLError(Exception):
    """Root of the tree. `exit_code` is the exit code of the command."""

    exit_code = 1

    def __str__(self) -> str:
        return _readable(super().__str__())


class UserInputError(AgentRLError):
    """The user's input cannot be used; raised before any work starts."""

    exit_code = 2


class ConfigError(UserInputError):
    """One or more problems in a configuration; `problems` holds one readable line each."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        head = "" if len(self.problems) == 1 else f"{len(self.problems)} problems in the configuration:\n  "
        super().__init__(head + "\n  ".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[str]]]:
        """Keep the structured fields across process boundaries."""
        return type(self), (self.problems,)


class DataError(UserInputError):
    """A dataset cell that cannot be used: its file, row and column, what it holds and what was wanted."""

    def __init__(self, file: str, row: int | None, column: str | None, got: str, wanted: str) -> None:
        self.file, self.row, self.column, self.got, self.wanted = file, row, column, got, wanted
        where = file + (f", row {row}" if row is not None else "") + (f", column '{column}'" if column else "")
        super().__init__(f"{where}: got {got}, wanted {wanted}")

    def __reduce__(self) -> tuple[type[DataError], tuple[str, int | None, str | None, str, str]]:
        """Keep the structured fields across process boundaries."""
        return type(self), (self.file, self.row, self.column, self.got, self.wanted)


class PluginError(UserInputError):
    """A tool, interaction, agent loop, reward or score function cannot be found or built."""


class TemplateError(UserInputError):
    """A tokenizer or chat template that cannot give exact tokens."""


class PictureError(UserInputError):
    """A picture that cannot be read, or one that is shown to a model that reads text only."""


class TokenStreamError(AgentRLError):
    """A rule of the token stream would be broken. Always a bug in agentrl or a plug-in."""


class DataProtoError(AgentRLError):
    """Rows of a `DataProto` that do not belong together, or a missing column: a bug in the calling code."""


class RewardError(AgentRLError):
    """A score function raised or returned something that is not a number."""


class InfrastructureError(AgentRLError):
    """Something around the model failed; the trajectory is left out of training, never scored 0."""

    exit_code = 3


class EngineError(InfrastructureError):
    """The inference engine failed."""


class EngineUnavailable(EngineError):
    """No connection to the engine, or it answered 5xx."""


class EngineTimeout(EngineError):
    """The engine gave no answer in time."""


class EngineRequestError(EngineError):
    """The engine refused a request (4xx): retrying the same request cannot help."""


class WeightVersionError(EngineError):
    """The engine serves a weight version other than the one the run asked for."""


class ToolServiceError(InfrastructureError):
    """A tool's backing service failed after its retries; raise it from `BaseTool.execute`."""


class ServiceDownError(InfrastructureError):
    """A trajectory was not started, because a service that it needs stayed down for longer than the run waits."""


class WorkerError(InfrastructureError):
    """A training worker died."""


class FailureBudgetError(AgentRLError):
    """Too many trajectories of one step ended in infrastructure failures."""

    exit_code = 3


class HealthError(AgentRLError):
    """The run does not learn: an alarm that stops the run is on, or too many steps in a row changed no weight."""

    exit_code = 3


class CheckpointError(AgentRLError):
    """A checkpoint cannot be written or read; the previous one is kept."""

    exit_code = 4


def suggest(given: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest known name, else the list of known names."""
    known = sorted(known)
    by_lower = {name.lower(): name for name in reversed(known)}
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.6) or [
        by_lower[name] for name in difflib.get_close_matches(given.lower(), by_lower, n=1, cutoff=0.6)
    ]
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" Known: {', '.join(known)}." if known else " None is known."


_FILE_MODULE = re.compile(r"\bagentrl_plugin_(\w+)_[0-9a-f]{8}\b")
_MOST_TEXT = 2000
_MOST_SHOWN = 200


def text_of(error: BaseException) -> str:
    """At most 2,000 characters of an error's text, also of a plug-in's own class whose `__str__` fails."""
    text = _readable(str(traceback.TracebackException(type(error), error, None, lookup_lines=False)))
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}... ({len(text)} characters)"


def repr_of(value: Any) -> str:
    """At most 200 characters of a refused value, also of a plug-in's own class whose `__repr__` fails."""
    return _readable(_SHOWN.repr(value)[:_MOST_SHOWN])


def _readable(text: str) -> str:
    """`<class 'agentrl_plugin_mine_0a1b2c3d.Tool'>` -> `<class 'mine.Tool'>`: the module name of a user's file."""
    return _FILE_MODULE.sub(r"\1", text)


class _Shown(reprlib.Repr):
    """`repr` that never raises."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = _MOST_SHOWN

    def repr_int(self, number: int, level: int) -> str:
        """Python refuses to write whole numbers of more than 4,300 digits."""
        bits = number.bit_length()
        return super().repr_int(number, level) if bits < _MOST_TEXT else f"a whole number of {bits} bits"


_SHOWN = _Shown()
