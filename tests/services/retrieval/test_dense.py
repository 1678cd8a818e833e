"""Dense and hybrid search: presets, pooling, missing neighbours, fusion, with a tiny real encoder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, RobertaConfig, RobertaModel

from agentrl.errors import UserInputError
from agentrl.services.retrieval import dense
from agentrl.services.retrieval.build_options import BuildOptions
from agentrl.services.retrieval.dense import find_nearest, make_faiss
from agentrl.services.retrieval.encoder import PRESETS, Encoder, Preset, find_preset
from agentrl.services.retrieval.index import Index
from agentrl.services.retrieval.index_build import build_index
from agentrl.services.retrieval.index_manifest import content_hash
from agentrl.services.retrieval.rank_fusion import fuse

Build = Callable[..., Path]
WORDS = ["query", "passage", ":", "red", "green", "blue", "apple", "pear", "sea", "stone", "sand", "the", "of", "a"]
ROWS = [{"id": n, "contents": f"{a} {b}"} for n, (a, b) in enumerate((x, y) for x in WORDS[3:] for y in WORDS[6:9])]


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of two layers over whole words."""
    folder = tmp_path_factory.mktemp("models") / "tiny-e5"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate(special + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def ids(found: list[tuple[bytes, float]]) -> list[str]:
    return [json.loads(document)["id"] for document, _ in found]


def test_presets_are_found_by_name_and_by_folder(tmp_path: Path) -> None:
    assert find_preset("auto", "intfloat/e5-base-v2") == PRESETS["e5"]
    assert find_preset("auto", "/models/bge_small_en") == PRESETS["bge"]
    assert find_preset("auto", "BAAI/bge-large-zh-v1.5").query_prefix.startswith("为")
    assert find_preset("auto", "BAAI/bge-m3") == Preset(pooling="cls")
    assert find_preset("auto", "intfloat/multilingual-e5-large-instruct").query_prefix.endswith("\nQuery: ")
    assert find_preset("auto", "someone/generalist") == PRESETS["plain"]
    assert (PRESETS["e5"].query_prefix, PRESETS["e5"].passage_prefix) == ("query: ", "passage: ")
    with pytest.raises(UserInputError, match="Did you mean 'e5'"):
        find_preset("e5x", "x")
    folder = describe(tmp_path / "own")
    assert find_preset("auto", str(folder)) is None, "as the model's own files say"
    assert find_preset("dot", str(folder)) == PRESETS["dot"]
    assert find_preset("auto", str(describe(tmp_path / "e5-base"))) == PRESETS["e5"]


@pytest.mark.parametrize(
    "model",
    [
        "intfloat/e5-mistral-7b-instruct",
        "BAAI/bge-multilingual-gemma2",
        "/models/bge_en_icl",
        "BAAI/bge-code-v1",
        "BAAI/bge-reasoner-embed-qwen3-8b-0923",
    ],
)
def test_models_of_a_known_name_that_pool_by_their_last_token_need_files_that_say_so(
    model: str, tmp_path: Path
) -> None:
    with pytest.raises(UserInputError, match=r"last token.*no modules\.json"):
        find_preset("auto", model)
    assert find_preset("auto", str(describe(tmp_path / Path(model).name))) is None


def test_a_model_of_the_hub_says_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was downloaded once lies in the cache."""
    snapshots = tmp_path / "models--someone--own" / "snapshots"
    describe(snapshots / "0123")
    (snapshots.parent / "refs").mkdir()
    (snapshots.parent / "refs" / "main").write_text("0123")
    monkeypatch.setattr("transformers.utils.hub.TRANSFORMERS_CACHE", str(tmp_path), raising=False)
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert find_preset("auto", "someone/own") is None
    assert find_preset("auto", "someone/else") == PRESETS["plain"]


def describe(folder: Path, pooling: dict[str, Any] | None = None, *more: str) -> Path:
    """Write the files of sentence-transformers into a folder: a transformer, how it pools, and modules behind it."""
    kinds = ("Transformer", "Pooling", *more)
    modules = [{"idx": n, "name": str(n), "path": "" if n == 0 else f"{n}_{kind}"} for n, kind in enumerate(kinds)]
    for module, kind in zip(modules, kinds, strict=True):
        module["type"] = f"sentence_transformers.models.{kind}"
        (folder / str(module["path"])).mkdir(parents=True, exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32} | (pooling or {})))
    return folder


def states_of(folder: Path, text: str) -> torch.Tensor:
    """What the transformer itself gives for each token."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    with torch.inference_mode():
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        states: torch.Tensor = BertModel.from_pretrained(folder).eval()(**inputs).last_hidden_state[0]
    return states


POOLINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pooling_mode_cls_token": lambda states: states[0],
    "pooling_mode_mean_tokens": lambda states: states.mean(0),
    "pooling_mode_lasttoken": lambda states: states[-1],
    "pooling_mode_max_tokens": lambda states: states.max(0).values,
}


@pytest.mark.parametrize("way", POOLINGS)
def test_pooling_and_prompts_are_those_of_the_model(encoder_folder: Path, tmp_path: Path, way: str) -> None:
    folder = describe(shutil.copytree(encoder_folder, tmp_path / "own"), {each: each == way for each in POOLINGS})
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "red: ", "passage": "blue: "}}')
    encoder = Encoder(str(folder), find_preset("auto", str(folder)), 16, "cpu")
    query, passage = encoder.queries(["apple", "the sea"])[0], encoder.passages(["apple", "the sea"])[0]
    assert np.allclose(query, POOLINGS[way](states_of(folder, "red: apple")).numpy(), atol=1e-5)
    assert np.allclose(passage, POOLINGS[way](states_of(folder, "blue: apple")).numpy(), atol=1e-5)


def test_modules_behind_the_pooling_are_those_of_the_model(encoder_folder: Path, tmp_path: Path) -> None:
    folder = describe(shutil.copytree(encoder_folder, tmp_path / "own"), None, "Dense", "Normalize")
    config = {
        "in_features": 32,
        "out_features": 8,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
    weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(5))
    save_file({"linear.weight": weight}, folder / "2_Dense" / "model.safetensors")
    wanted = torch.nn.functional.normalize(weight @ states_of(folder, "apple").mean(0), dim=0).numpy()
    assert np.allclose(Encoder(str(folder), None, 16, "cpu").queries(["apple", "sea"])[0], wanted, atol=1e-5)


def test_an_index_of_a_model_that_says_how_it_is_used(build: Build, encoder_folder: Path, tmp_path: Path) -> None:
    pooling = {"pooling_mode": "lasttoken"}
    folder = describe(shutil.copytree(encoder_folder, tmp_path / "own"), pooling, "Normalize")
    index = Index(build(ROWS, kind="dense", encoder=str(folder), max_tokens=16))
    assert index.about["settings"]["preset"] is None
    assert [ids(hits) for hits in index.search([str(row["contents"]) for row in ROWS], 1)] == [
        [str(row["id"])] for row in ROWS
    ]
    describe(folder, {"pooling_mode": "cls"}, "Normalize")
    with pytest.raises(UserInputError, match="made by another encoder"):
        Index(tmp_path / "index")


@pytest.mark.parametrize("preset", [*PRESETS.values(), Preset(pooling="cls", normalize=False)])
def test_vectors_do_not_depend_on_the_padding(encoder_folder: Path, preset: Preset) -> None:
    encoder = Encoder(str(encoder_folder), preset, 16, "cpu")
    texts = ["red apple", "the sea of blue stone and sand sand sand", "pear"]
    together, alone = encoder.passages(texts), np.concatenate([encoder.passages([text]) for text in texts])
    assert np.allclose(together, alone, atol=1e-5)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5) == preset.normalize
    assert np.allclose(encoder.queries(texts[:1]), encoder.passages(texts[:1])) == (
        preset.query_prefix == preset.passage_prefix
    )


def test_mean_pooling_is_over_the_tokens(encoder_folder: Path) -> None:
    encoder = Encoder(str(encoder_folder), PRESETS["e5"], 16, "cpu")
    wanted = torch.nn.functional.normalize(states_of(encoder_folder, "query: red apple").mean(0), dim=0).numpy()
    assert np.allclose(encoder.queries(["red apple", "a longer text than that"])[0], wanted, atol=1e-5)
    cls = Encoder(str(encoder_folder), Preset(pooling="cls", normalize=False), 16, "cpu")
    assert np.allclose(cls.queries(["red apple"])[0], states_of(encoder_folder, "red apple")[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("dense_index", ["flat", "hnsw"])
def test_a_dense_index_finds_the_document_itself(build: Build, encoder_folder: Path, dense_index: str) -> None:
    options = {"kind": "dense", "encoder": str(encoder_folder), "preset": "plain", "dense_index": dense_index}
    index = Index(build(ROWS, block_rows=10, max_tokens=16, **options))
    found = index.search([str(row["contents"]) for row in ROWS], 1)
    assert [ids(hits) for hits in found] == [[str(row["id"])] for row in ROWS]
    assert all(abs(hits[0][1] - 1) < 1e-4 for hits in found)
    assert index.about["settings"]["dense_index"] == dense_index


@pytest.mark.parametrize("dense_index", ["flat", "hnsw"])
def test_missing_neighbours_are_left_out(build: Build, encoder_folder: Path, dense_index: str) -> None:
    """A known server gives the last document where faiss says -1."""
    options = {"kind": "dense", "encoder": str(encoder_folder), "dense_index": dense_index}
    index = Index(build(ROWS[:2], max_tokens=16, **options))
    assert sorted(ids(index.search(["red apple"], 50)[0])) == ["0", "1"]


@pytest.fixture
def interrupt(build: Build, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Build an index of `ROWS` until its vectors are encoded, and no further."""

    def build_and_stop(**options: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("faiss.write_index", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                build(ROWS, **options)

    return build_and_stop


def test_encoded_blocks_are_kept_when_a_build_goes_on(
    interrupt: Callable[..., None], encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"kind": "hybrid", "encoder": str(encoder_folder), "max_tokens": 16, "block_rows": 10}
    interrupt(**options)
    assert len(list((tmp_path / ".index.building").glob("*.vectors.npy"))) == 4
    monkeypatch.delattr(dense, "_encode_shard")
    again = BuildOptions(**options, workers=1)
    assert build_index([tmp_path / "corpus.jsonl"], tmp_path / "index", again, quiet=True) == len(ROWS)
    assert len(Index(tmp_path / "index").search(["red apple"], 5)[0]) == 5


def test_encoded_blocks_of_other_weights_are_not_used(
    interrupt: Callable[..., None], build: Build, encoder_folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "encoder"
    shutil.copytree(encoder_folder, copy)
    options: dict[str, Any] = {"kind": "dense", "encoder": str(copy), "max_tokens": 16, "block_rows": 10}
    interrupt(**options)
    torch.manual_seed(4)
    BertModel(BertConfig.from_pretrained(copy)).save_pretrained(copy)
    build_index([tmp_path / "corpus.jsonl"], tmp_path / "index", BuildOptions(**options, workers=1), quiet=True)
    resumed, whole = Index(tmp_path / "index"), Index(build(ROWS, name="whole", **options))
    assert resumed.search(["red apple"], 50) == whole.search(["red apple"], 50)


def test_hybrid_fuses_both(build: Build, encoder_folder: Path) -> None:
    options = {"encoder": str(encoder_folder), "max_tokens": 16}
    both = Index(build(ROWS, name="both", kind="hybrid", **options))
    parts = [Index(build(ROWS, name=kind, kind=kind, **options)) for kind in ("bm25", "dense")]
    query = "green pear"
    rankings = [[(int(i), 0.0) for i in ids(part.search([query], 100)[0])] for part in parts]
    wanted = fuse(rankings, 5)
    found = both.search([query], 5)[0]
    assert ids(found) == [str(number) for number, _ in wanted]
    assert np.allclose([score for _, score in found], [score for _, score in wanted])


def test_reciprocal_rank_fusion() -> None:
    fused = fuse([[(7, 9.0), (3, 8.0)], [(3, 0.9), (5, 0.8)]], 3)
    assert [number for number, _ in fused] == [3, 7, 5]
    assert np.allclose([score for _, score in fused], [1 / 62 + 1 / 61, 1 / 61, 1 / 62])
    assert fuse([[], []], 3) == []


def test_an_index_of_another_encoder_is_refused(
    build: Build, encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "encoder"
    shutil.copytree(encoder_folder, copy)
    monkeypatch.chdir(tmp_path)
    folder = build(ROWS, kind="dense", encoder="encoder", max_tokens=16)
    monkeypatch.chdir("/")
    Index(folder)
    torch.manual_seed(4)
    BertModel(BertConfig.from_pretrained(copy)).save_pretrained(copy)
    with pytest.raises(UserInputError, match="made by another encoder"):
        Index(folder)
    shutil.rmtree(copy)
    with pytest.raises(UserInputError, match="sentence-transformers cannot use it"):
        Index(folder)
    other = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    BertModel(other).save_pretrained(copy)
    PreTrainedTokenizerFast.from_pretrained(encoder_folder).save_pretrained(copy)
    with pytest.raises(UserInputError, match="made by another encoder"):
        Index(folder)


@pytest.mark.parametrize("device", ["foo", "xpu", "meta"])
def test_a_device_that_torch_cannot_use_is_named(build: Build, encoder_folder: Path, device: str) -> None:
    options = {"kind": "dense", "encoder": str(encoder_folder)}
    with pytest.raises(UserInputError, match=f"--device {device}: torch cannot use it"):
        build(ROWS, device=device, **options)
    with pytest.raises(UserInputError, match=f"--device {device}: torch cannot use it"):
        Index(build(ROWS, **options), device=device)


def test_longer_texts_are_cut_at_the_limit_of_the_encoder(build: Build, encoder_folder: Path, tmp_path: Path) -> None:
    rows = [*ROWS, {"id": "long", "contents": "stone " * 200}]
    index = Index(build(rows, kind="dense", encoder=str(encoder_folder)))
    assert index.about["settings"]["max_tokens"] == 64
    assert ids(index.search(["sand " * 200, "apple"], 1)[0])
    roberta = shutil.copytree(encoder_folder, tmp_path / "roberta")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = RobertaConfig(vocab_size=40, max_position_embeddings=66, pad_token_id=1, **sizes)
    RobertaModel(config).save_pretrained(roberta)
    for limit, wanted in ((100, 64), (48, 48)):
        PreTrainedTokenizerFast.from_pretrained(encoder_folder, model_max_length=limit).save_pretrained(roberta)
        encoder = Encoder(str(roberta), PRESETS["plain"], 256, "cpu")
        assert encoder.max_tokens == wanted
        assert encoder.passages(["sea " * 300, "sea"]).shape == (2, 16)


def test_encoders_that_cannot_encode(encoder_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="--max-tokens 2: wanted more than the 2 special tokens"):
        Encoder(str(encoder_folder), PRESETS["plain"], 2, "cpu")
    broken = shutil.copytree(encoder_folder, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(UserInputError, match="header"):
        Encoder(str(broken), PRESETS["plain"], 16, "cpu")
    unpadded = shutil.copytree(encoder_folder, tmp_path / "unpadded")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(unpadded)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(unpadded)
    with pytest.raises(UserInputError, match="padding token"):
        Encoder(str(unpadded), PRESETS["plain"], 16, "cpu")


def test_an_index_of_another_faiss_is_refused(build: Build, encoder_folder: Path) -> None:
    folder = build(ROWS, kind="dense", encoder=str(encoder_folder))
    content = json.loads((folder / "index.json").read_text())
    assert sorted(content["versions"]) == ["agentrl", "faiss", "numpy", "python", "torch", "transformers"]
    content["versions"]["faiss"] = "99.0.0"
    content["sha256"] = content_hash(content)
    (folder / "index.json").write_text(json.dumps(content))
    with pytest.raises(UserInputError, match=r"made with faiss 99\.0\.0.*build it again"):
        Index(folder)


def test_the_graph_finds_what_exact_search_finds() -> None:
    vectors = np.random.default_rng(1).normal(size=(3000, 24)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    exact, graph = make_faiss("flat", 24), make_faiss("hnsw", 24)
    exact.add(vectors)
    graph.add(vectors)
    wanted, found = find_nearest(exact, vectors[:100], 10, False)[1], find_nearest(graph, vectors[:100], 10, True)[1]
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(wanted.tolist(), found.tolist(), strict=True)])
    assert recall >= 0.95
