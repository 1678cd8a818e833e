"""`agentrl demo`: a tiny model learns to use a calculator, through the whole production path, in minutes on a CPU.

In the order in which a run uses them: `tokenizer` and `model` build the untrained model, `demonstrations` and
`datasets` write its data, `warm_start` trains and caches the warm start, `show` is the live table, `report` the final
report, and `command` ties them together.
"""
