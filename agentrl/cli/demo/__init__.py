"""`agentrl demo`: a tiny model learns to act, through the whole production path, in minutes on a CPU.

One module describes each demo: `calculator` (with `demonstrations`), `search` and `interaction` (with `words`), and
`python`; `description` says what a description holds, and `demos` lists them. All else is the same for all of them, in
the order in which a run uses it: `tokenizer` and `model` build the untrained model, `warm_start` trains and caches the
warm start, `service` runs what the demo needs, `show` is the live table, `report` the final report, and `command` ties
them together.
"""
