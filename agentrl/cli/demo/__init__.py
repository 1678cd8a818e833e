"""`agentrl demo`: a tiny model learns to use a calculator, by the whole production path, in minutes on a CPU.

In the order in which a run uses them: `tokenizer` and `model` build what is trained, `demonstrations` and `datasets`
write its data, `warm_start` fits and caches the start, `show` is the live table, `report` the closing page,
and `command` ties them together.
"""
