"""Imports a Python file that a YAML names; `neighbours` finds the modules beside it that it imports in turn."""

from __future__ import annotations

import importlib.util
import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from agentrl.errors import AgentRLError, PluginError
from agentrl.plugins.neighbours import exec_beside, own_folder_first
from agentrl.plugins.verl import import_hook

IMPORT_ERRORS = (
    ImportError,
    SyntaxError,
    AttributeError,
    NameError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    OSError,
    SystemExit,
    AgentRLError,
)
"""Errors that a plug-in's code may raise while it is imported, or when one of its instances is built."""
_loading: list[Path] = []
"""Plug-in files that are being imported right now, the innermost last."""


def load_file(path: Path) -> ModuleType:
    """Import a Python file once per process under its own module name.

    As in a script, its own folder comes first for its imports, those inside its functions and those of the modules
    beside it included.

    Raises:
        PluginError: the file is missing or raises when it is imported.
    """
    full = path.resolve()
    if not full.is_file():
        raise PluginError(f"plug-in file {path} does not exist")
    name = f"agentrl_plugin_{full.stem}_{sha256(str(full).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    import_hook.install()
    _loading.append(path)
    try:
        with own_folder_first(full.parent):
            exec_beside(module, spec.loader, full.parent)
    except IMPORT_ERRORS as error:
        del sys.modules[name]
        raise PluginError(f"plug-in file {path} cannot be imported: {import_problem(error)}") from error
    finally:
        _loading.pop()
    return module


def file_being_imported() -> Path | None:
    """The plug-in file whose import this call is part of."""
    return _loading[-1] if _loading else None


def import_problem(error: BaseException) -> str:
    """An error of an import, with advice if it is about verl."""
    hint = import_hook.hint(error) if isinstance(error, ImportError) else ""
    return f"{type(error).__name__}: {error}{hint}"
