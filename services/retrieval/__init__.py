"""Retrieval service: BM25, dense and hybrid search over a corpus, behind Search-R1's `POST /retrieve`.

`index_build` makes an index folder from a corpus, `index` opens it, `app` answers requests over it. Nothing here
imports torch unless the index is dense or hybrid.
"""
