"""Draw the pictures of docs/viewer.md: `python docs/images/viewer_shots.py` writes `docs/images/viewer_*.png`.

They show the runs that `tests/viewer/made_up_run.py` makes up. It needs Chromium and playwright (`make setup`).
"""

from __future__ import annotations

import io
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import httpx
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "viewer"))

from made_up_run import write_runs  # noqa: E402
from page_site import chromium, go, serve_runs  # noqa: E402

COLOURS = 224
RUN = "#/run/with_tool"


@dataclass(frozen=True)
class Shot:
    """A view of the page."""

    name: str
    address: str
    width: int = 1180
    height: int = 640
    colours: str = "light"


SHOTS = (
    Shot("run", f"{RUN}?with=no_tool&smooth=0.5", 1300, 900),
    Shot("conversations", f"{RUN}/conversations?step=12&sort=reward&order=asc&at=5", 1300, 560),
    Shot("groups", f"{RUN}/groups?step=14", height=520),
    Shot("chat", f"{RUN}/conversation/ID", height=560),
    Shot("tokens", f"{RUN}/conversation/ID?tab=tokens&colour=log_prob", height=600, colours="dark"),
    Shot("phone", f"{RUN}/conversation/ID", 360, 720),
)


def draw(folder: Path) -> None:
    """Write all pictures."""
    with tempfile.TemporaryDirectory() as runs:
        write_runs(Path(runs))
        with serve_runs(Path(runs)) as site, chromium() as browser:
            number = conversation(site)
            for shot in SHOTS:
                view = {"width": shot.width, "height": shot.height}
                page = browser.new_page(viewport=view, color_scheme=shot.colours)
                go(page, site + shot.address.replace("ID", str(number)))
                page.wait_for_load_state("networkidle")
                small(page.screenshot()).save(folder / f"viewer_{shot.name}.png", optimize=True)
                page.close()


def conversation(site: str) -> int:
    """One of step 15 whose call failed, once the server has looked at all dumps."""
    while True:
        query = {"step": 15, "tool": "calculator", "reward_max": 0.3}
        found = httpx.get(f"{site}api/runs/with_tool/trajectories", params=query).json()
        if found["complete"]:
            return int(found["rows"][0]["id"])


def small(picture: bytes) -> Image.Image:
    """With few colours: a third of the bytes."""
    return Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)


if __name__ == "__main__":
    draw(Path(__file__).parent)
