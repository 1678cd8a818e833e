"""Imports a Python file that a YAML names, and the modules beside it that it imports in turn."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from agentrl.errors import AgentRLError, PluginError
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
_neighbours: dict[Path, dict[str, ModuleType]] = {}
"""Folders of plug-in files, and the modules that were imported from them under their own names."""


def load_file(path: Path) -> ModuleType:
    """Import a Python file once per process under its own module name.

    As in a script, its own folder comes first on the import path while it is imported. Later imports, inside its
    functions, find modules of that folder too, unless the path has others of the same name.

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
        with _own_folder_first(full.parent):
            spec.loader.exec_module(module)
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


@contextmanager
def _own_folder_first(folder: Path) -> Iterator[None]:
    """Let imports find what lies in the folder before anything else.

    Two plug-ins may each have a `helpers.py` beside them. While the second is imported, the first one's is out of the
    way; afterwards the name means the first one's again, since its classes may be pickled by that name.
    """
    if not any(isinstance(finder, _Beside) for finder in sys.meta_path):
        sys.meta_path.append(_Beside())
    importlib.invalidate_caches()  # the file beside it may be newer than what Python remembers of the folder
    others = {name for other, known in _neighbours.items() if other != folder for name in known}
    hidden = {name: sys.modules.pop(name) for name in others if name in sys.modules and _holds(folder, name)}
    own = _neighbours.setdefault(folder, {})
    sys.modules.update(own)
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(str(folder))
        new = {name: sys.modules[name] for name in set(sys.modules) - before if _holds(folder, name)}
        own.update({name: module for name, module in new.items() if _lies_in(module, folder)})
        sys.modules.update(hidden)


class _Beside(MetaPathFinder):
    """Finds modules beside plug-in files, after everything else: for imports inside their functions."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Only whole names, and only files: a folder of data is no module."""
        found = PathFinder.find_spec(fullname, [str(folder) for folder in _neighbours]) if path is None else None
        return found if found is not None and found.origin is not None else None


def _holds(folder: Path, name: str) -> bool:
    top = name.partition(".")[0]
    return (folder / f"{top}.py").is_file() or (folder / top).is_dir()


def _lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and folder in Path(file).resolve().parents
