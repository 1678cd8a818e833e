"""`agentrl serve retrieval` and `agentrl data index`: arguments, then the server or the build."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from agentrl.errors import UserInputError

TOKEN_VARIABLE = "AGENTRL_SERVICE_TOKEN"
DEFAULT_PORT = 8000


def serve(arguments: Sequence[str]) -> int:
    """Run the server until it is told to stop; returns the exit code.

    Raises:
        UserInputError: an argument or the index cannot be used.
    """
    _need("bm25s", "numba", "cachetools")
    from agentrl.services.common.access_control import refuse_unprotected_host
    from agentrl.services.common.http_server import exit_on_sigterm, serve_app
    from agentrl.services.common.logs import set_up_logs
    from agentrl.services.retrieval.app import create_app
    from agentrl.services.retrieval.index import Index
    from agentrl.services.retrieval.options import MIB, RetrievalOptions
    from agentrl.services.retrieval.reloadable_index import ReloadableIndex

    given = _serve_parser().parse_args(arguments)
    token = given.token if given.token is not None else os.environ.get(TOKEN_VARIABLE)
    refuse_unprotected_host(given.host, token, given.insecure)
    options = RetrievalOptions(
        default_topk=given.topk,
        max_topk=given.max_topk,
        max_queries=given.max_queries,
        max_query_chars=given.max_query_chars,
        max_waiting=given.max_waiting,
        timeout_s=given.timeout,
        cache_bytes=int(given.cache_mb * MIB),
        **({"threads": given.threads} if given.threads else {}),
    )
    set_up_logs()
    with exit_on_sigterm(), _folder(given.index) as folder:
        served_index = ReloadableIndex(lambda: Index(folder, not given.skip_hash, given.device), options.cache_bytes)
        serve_app(
            create_app(served_index, options, token), given.host, given.port, on_hangup=served_index.request_reload
        )
    return 0


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    from agentrl.services.retrieval.sample_index import sample_index

    with sample_index() as folder:
        yield folder


def index(arguments: Sequence[str]) -> int:
    """Build an index; returns the exit code.

    Raises:
        UserInputError: an argument cannot be used.
        DataError: a row of the corpus cannot be used.
    """
    _need("bm25s")
    from agentrl.services.retrieval.build_options import BuildOptions
    from agentrl.services.retrieval.index_build import build_index

    given = vars(_index_parser().parse_args(arguments))
    if given["kind"] != "bm25":
        _need("faiss", "sentence_transformers")
    files, out, force, quiet = (given.pop(name) for name in ("corpus", "out", "force", "quiet"))
    documents = build_index(files, out, BuildOptions(**given), force, quiet)
    sys.stdout.write(f"{out}: {given['kind']} index of {documents} documents\n")
    return 0


def _need(*modules: str) -> None:
    for module in modules:
        if find_spec(module) is None:
            raise UserInputError(f"the retrieval service needs {module}: pip install 'agentrl[services]'")


def _at_least(lowest: float, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    def convert(text: str) -> float:
        value = kind(text)
        if not lowest <= value < math.inf:
            raise argparse.ArgumentTypeError(f"got {text}, wanted a number of {lowest} or more")
        return value

    convert.__name__ = kind.__name__
    return convert


def _serve_parser() -> argparse.ArgumentParser:
    from agentrl.services.retrieval.options import MIB, RetrievalOptions

    defaults = RetrievalOptions()
    parser = argparse.ArgumentParser(
        prog="agentrl serve retrieval",
        description="Search over a corpus, in Search-R1's protocol: POST /retrieve.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--index", type=Path, help="folder made by `agentrl data index`; without it a small sample is served")
    add("--host", default="127.0.0.1", help="address; one that other machines reach needs --token or --insecure")
    add("--port", type=int, default=DEFAULT_PORT, help="0 takes a free one and logs it")
    add("--token", help=f"bearer token that requests must carry; better in the variable {TOKEN_VARIABLE}")
    add("--insecure", action="store_true", help="serve other machines without a token")
    add("--topk", type=_at_least(1), default=defaults.default_topk, help="documents when a request gives no topk")
    add("--max-topk", type=_at_least(1), default=defaults.max_topk, help="most documents per query")
    add("--max-queries", type=_at_least(1), default=defaults.max_queries, help="most queries per request")
    add(
        "--max-query-chars",
        type=_at_least(1),
        default=defaults.max_query_chars,
        help="cuts longer ones, with a note",
    )
    add("--max-waiting", type=_at_least(1), default=defaults.max_waiting, help="queries that may wait, then 429")
    add("--timeout", type=_at_least(0.001, float), default=defaults.timeout_s, help="seconds per request, then 504")
    add("--threads", type=_at_least(0), default=0, help="searches at once; 0: one per core, 8 at most")
    add("--cache-mb", type=_at_least(0, float), default=defaults.cache_bytes // MIB, help="result cache; 0: none")
    add("--device", default="auto", help="of a dense index's encoder: cpu, cuda or auto")
    add("--skip-hash", action="store_true", help="check only the sizes of the index files, not their hashes")
    return parser


def _index_parser() -> argparse.ArgumentParser:
    from agentrl.services.retrieval.build_options import BuildOptions
    from agentrl.services.retrieval.dense import INDEXES
    from agentrl.services.retrieval.encoder import PRESETS
    from agentrl.services.retrieval.index_manifest import KINDS

    defaults = BuildOptions()
    parser = argparse.ArgumentParser(
        prog="agentrl data index",
        description="Build a search index; run the same command again to continue an interrupted build.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("corpus", type=Path, nargs="+", help="JSONL, JSONL.gz or parquet with `id, contents` or `id, title, text`")
    add("--out", type=Path, required=True, help="index folder")
    add("--kind", choices=KINDS, default=defaults.kind, help="terms, vectors, or both fused by rank")
    add("--k1", type=float, default=defaults.k1, help="bm25: how slowly repeated terms saturate")
    add("--b", type=float, default=defaults.b, help="bm25: how much long documents are penalised")
    add("--stemmer", default=defaults.stemmer, help="bm25: language of PyStemmer, or none")
    add("--encoder", help="dense: folder or hub name of a Hugging Face encoder")
    add("--preset", default=defaults.preset, help=f"dense: prefixes and pooling: auto, {', '.join(PRESETS)}")
    add("--dense-index", choices=(*INDEXES, "auto"), default=defaults.dense_index, help="exact, or a graph")
    add("--max-tokens", type=_at_least(1), default=defaults.max_tokens, help="dense: texts are cut here, or earlier")
    add("--encode-batch", type=_at_least(1), default=defaults.encode_batch, help="dense: texts per forward pass")
    add("--device", default=defaults.device, help="dense: cpu, cuda or auto")
    add("--workers", type=_at_least(0), default=defaults.workers, help="reading processes; 0: one per core")
    add("--force", action="store_true", help="replace an older index, in one step")
    add("--quiet", action="store_true", help="no progress bar")
    return parser
