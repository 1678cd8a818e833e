"""A model is a folder, or a name of the hub: its cache comes first, a mistyped path is told at once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import huggingface_hub
import pytest

from agentrl.chat.loading import load_renderer
from agentrl.config.loader import load_config
from agentrl.errors import ConfigError, TemplateError
from agentrl.hub import model_folder, model_of_checkpoint
from agentrl.inference.embedded import server
from agentrl.inference.embedded.__main__ import main
from agentrl.inference.embedded.options import EngineOptions


class Hub(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200 if "good" in self.path else 503 if "busy" in self.path else 401)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    Hub.asked.clear()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    yield address
    server.shutdown()
    server.server_close()


def refusal(name: str) -> str:
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        model_folder(name)
    assert time.monotonic() - began < 5
    return str(caught.value)


def test_a_mistyped_path_asks_no_hub(hub: str, tmp_path: Path) -> None:
    (tmp_path / "models" / "qwen2").mkdir(parents=True)
    assert refusal("models/qwenn2") == "no model folder 'models/qwenn2'. Did you mean 'models/qwen2'?"
    for name in ("./qwen", "/no/such/folder", "~/no/such", "a/b/c", "what is this", "models/zzz"):
        assert refusal(name).startswith(f"no model folder '{name}'")
    assert Hub.asked == []


def test_a_name_that_the_hub_does_not_have_is_asked_once(hub: str, tmp_path: Path) -> None:
    (tmp_path / "qwen2").mkdir()
    text = refusal("qwenn2")
    assert text.startswith("no model folder 'qwenn2'. Did you mean 'qwen2'? The hub's cache has no such model either")
    assert f"{hub} has none of that name" in text
    assert f"{hub} answers HTTP 503" in refusal("owner/busy")
    assert Hub.asked == ["/api/models/qwenn2", "/api/models/owner/busy"]


def test_without_a_network(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 cannot be reached ([Errno 111] Connection refused)" in refusal("owner/model")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert refusal("owner/model").endswith("HF_HUB_OFFLINE is set")
    with pytest.raises(TemplateError, match="cannot load a tokenizer from owner/model: no model folder"):
        load_renderer("owner/model")


def test_a_download_is_announced_and_a_cached_model_needs_none(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[bool] = []

    def download(name: str, *, allow_patterns: Any, local_files_only: bool = False) -> str:
        calls.append(local_files_only)
        assert allow_patterns == ["*.json", "*.jinja", "*.model", "*.txt", "*.py"]
        if local_files_only and not (tmp_path / "cache" / "config.json").exists():
            raise FileNotFoundError
        if not local_files_only:
            assert f"'owner/good' is no folder here: downloading it from {hub}" in caplog.text
            (tmp_path / "cache").mkdir()
            (tmp_path / "cache" / "config.json").write_text("{}")
        return str(tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with caplog.at_level("INFO", logger="agentrl"):
        assert model_folder("owner/good") == tmp_path / "cache"
    assert model_folder("owner/good") == tmp_path / "cache"
    assert calls == [True, False, True]
    assert len(Hub.asked) == 1


def test_half_downloaded_weights_are_not_taken(hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir()
    for name, text in (("config.json", "{}"), ("one.safetensors", ""), ("two.safetensors", "")):
        (tmp_path / "cache" / name).write_text(text)
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "cache" / "model.safetensors.index.json").write_text(json.dumps(index))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path / "cache"))
    assert model_folder("owner/none", weights=True) == tmp_path / "cache"
    (tmp_path / "cache" / "two.safetensors").unlink()
    assert model_folder("owner/none") == tmp_path / "cache"
    with pytest.raises(ConfigError, match="has none of that name"):
        model_folder("owner/none", weights=True)


def test_the_embedded_engine_takes_a_model_of_the_hub(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tiny_model_dir))
    started: list[EngineOptions] = []
    monkeypatch.setattr(server, "run_engine_server", lambda options: started.append(options) or 0)
    assert main(["--model", "owner/tiny"]) == 0
    assert started[0].model == str(tiny_model_dir)


def test_a_checkpoint_names_the_model_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step, inside in ((2, "actor/huggingface"), (10, "actor/huggingface"), (3, "huggingface")):
        folder = tmp_path / f"run{step % 2}" / f"global_step_{step}" / inside
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    model = tmp_path / "run0" / "global_step_2" / "actor" / "huggingface"
    for given in ("run0/global_step_2", "run0/global_step_2/actor", str(model.relative_to(tmp_path))):
        assert model_of_checkpoint(str(tmp_path / given)) == str(model)
    assert "global_step_10/" in model_of_checkpoint(str(tmp_path / "run0"))
    (tmp_path / "run0" / "latest_checkpointed_iteration.txt").write_text("2\n")
    assert model_of_checkpoint(str(tmp_path / "run0")) == str(model)
    assert model_of_checkpoint(str(tmp_path / "run1")).endswith("global_step_3/huggingface")
    assert model_of_checkpoint(str(tmp_path)) == str(tmp_path)
    assert model_of_checkpoint("owner/name") == "owner/name"
    with caplog.at_level("INFO"):
        for _ in range(2):
            config = load_config(
                None,
                [
                    f"actor_rollout_ref.model.path={tmp_path / 'run0'}",
                    "trainer.test_freq=-1",
                    "algorithm.adv_estimator=grpo",
                    "actor_rollout_ref.rollout.n=2",
                    "data.train_files=x",
                ],
            )
    assert config.actor_rollout_ref.model.path == str(model)
    assert [record.getMessage() for record in caplog.records].count(
        f"'{tmp_path / 'run0'}' is a checkpoint: its model is {model}"
    ) == 1
