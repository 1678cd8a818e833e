"""The curl lines of the sandbox section of docs/services.md work as written."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from sandbox_service import Server

PAGE = Path(__file__).resolve().parents[3] / "docs" / "services.md"


def test_curl_lines(server: Server) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Sandbox\n")[2].partition("\n## ")[0]
    blocks = [block for block in re.findall(r"```bash\n(.*?)```", section, re.DOTALL) if "curl" in block]
    assert len(blocks) == 2
    outputs = []
    for block in blocks:
        script = block.replace("curl -s", "curl -sSf -w '\\n'").replace("http://127.0.0.1:8080", server.url)
        done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    for wanted in ('"stdout":"42\\n"', '"out.txt":"YQpiCg=="', "pong", '"text/plain":"6"', '"verdict":"Passed"'):
        assert wanted in outputs[0]
    assert '"stdout":"42\\n"' in outputs[1]
