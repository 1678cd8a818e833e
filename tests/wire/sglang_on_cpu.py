"""Makes an installed SGLang start on a CPU without AMX: `VENV/bin/python tests/wire/sglang_on_cpu.py`.

Without AMX, SGLang 0.5.23 imports one name of vLLM for its rotary embedding, and then uses its own code instead. This
writes a package `vllm` with that name into the environment that runs it, unless it has vLLM, and nothing else.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

FILES = {
    "__init__.py": '"""Stands in for vLLM: SGLang asks for one name of it on a CPU."""\n',
    "_custom_ops.py": (
        '"""Names that SGLang imports and does not call."""\n\n\n'
        "def rotary_embedding(*arguments, **options):\n"
        '    raise RuntimeError("SGLang was to use its own rotary embedding: this package only stands in for vLLM")\n'
    ),
}


def main() -> int:
    """Write the package."""
    if importlib.util.find_spec("sglang") is None:
        sys.stderr.write(f"{sys.executable} has no sglang: pip install sglang==0.5.23\n")
        return 1
    if importlib.util.find_spec("vllm") is None:
        folder = Path(sysconfig.get_paths()["purelib"]) / "vllm"
        folder.mkdir()
        for name, text in FILES.items():
            (folder / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
