"""Lets a plug-in file import the modules beside it, and keeps those of several folders apart.

Two plug-ins may each have a `helpers.py` beside them, and Python has one `sys.modules`. So a plug-in file and its
neighbours get an `__import__` of their own, which puts their folder's modules in place while it works. It serves an
import inside a function too, which runs long after the file was imported.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_neighbours: dict[Path, dict[str, ModuleType]] = {}
"""Folders of plug-in files, and the modules that were imported from them under their own names."""
_inside: list[Path] = []
"""Folders whose modules are in place right now, the innermost last."""
_one_at_a_time = threading.RLock()


@contextmanager
def own_folder_first(folder: Path) -> Iterator[None]:
    """Let imports find what lies in the folder before anything else.

    Modules of the same name beside other plug-ins are out of the way meanwhile; afterwards the name means the first
    one's again, since its classes may be pickled by that name.
    """
    with _one_at_a_time:
        if not any(isinstance(finder, _Beside) for finder in sys.meta_path):
            sys.meta_path.append(_Beside())
        importlib.invalidate_caches()  # the file beside it may be newer than what Python remembers of the folder
        others = {name for other, known in _neighbours.items() if other != folder for name in known}
        hidden = {name: sys.modules.pop(name) for name in others if name in sys.modules and _holds(folder, name)}
        own = _neighbours.setdefault(folder, {})
        sys.modules.update(own)
        before, finder = set(sys.modules), _Within(folder)
        sys.path.insert(0, str(folder))
        sys.meta_path.insert(0, finder)
        _inside.append(folder)
        try:
            yield
        finally:
            _inside.pop()
            with suppress(ValueError):
                sys.meta_path.remove(finder)
            with suppress(ValueError):
                sys.path.remove(str(folder))
            new = {name: sys.modules[name] for name in set(sys.modules) - before if _holds(folder, name)}
            own.update({name: module for name, module in new.items() if _lies_in(module, folder)})
            sys.modules.update(hidden)


def exec_beside(module: ModuleType, loader: Loader, folder: Path) -> None:
    """Run a module's code such that its imports, now and later, find what lies in the folder first."""
    # Python takes `__import__` from the `__builtins__` of the code that imports.
    module.__dict__["__builtins__"] = _builtins_of(folder)
    loader.exec_module(module)


@cache
def _builtins_of(folder: Path) -> dict[str, Any]:
    return {**vars(builtins), "__import__": partial(_import, folder)}


def _import(
    folder: Path,
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """`__import__` of a plug-in file and its neighbours."""
    if level == 0 and _holds(folder, name):
        own, top = _neighbours.get(folder, {}), name.partition(".")[0]
        if name in own and top in own and all(hasattr(own[name], each) for each in fromlist or ()):
            return own[name] if fromlist else own[top]
        with _one_at_a_time:
            if _inside[-1:] != [folder]:
                with own_folder_first(folder):
                    return builtins.__import__(name, globals, locals, fromlist or (), level)
    return builtins.__import__(name, globals, locals, fromlist or (), level)


class _Within(MetaPathFinder):
    """Finds modules in one folder, before anything else, and has them import as the plug-in file does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Only Python files: what else there may be, Python's own finders find."""
        found = PathFinder.find_spec(fullname, [str(self._folder)] if path is None else path)
        if found is None or not isinstance(found.loader, SourceFileLoader) or not _is_in(found.origin, self._folder):
            return None
        found.loader = _LoaderWithin(found.loader.name, found.loader.path, self._folder)
        return found


class _LoaderWithin(SourceFileLoader):
    def __init__(self, fullname: str, path: str, folder: Path) -> None:
        super().__init__(fullname, path)
        self._folder = folder

    def exec_module(self, module: ModuleType) -> None:
        """Run its code with the folder's `__import__`."""
        exec_beside(module, SourceFileLoader(self.name, self.path), self._folder)


class _Beside(MetaPathFinder):
    """Finds modules beside plug-in files, after everything else: for what imports by name, such as `pickle`."""

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
    # A folder without `__init__.py` is a package with places only.
    return any(_is_in(place, folder) for place in ([file] if file else getattr(module, "__path__", ())))


def _is_in(file: str | None, folder: Path) -> bool:
    return isinstance(file, str) and folder in Path(file).resolve().parents
