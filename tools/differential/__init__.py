"""The same drawn jobs in two work trees: what one writes, the other must write.

    python -m tools.differential OLD_TREE NEW_TREE [--jobs N] [--seed S] [--for SPAN]

A job is one of the kept recipes (`tests/golden/descriptions`), handed over as stored configurations, so that the
verbs of the two trees may differ; random rows for its streams; and what is done between batches: restarts, changed
settings, late rows reprocessed, lost messages put back, another number of partitions, a rewind. Each tree runs it in
a process of its own, by its own `tools.differential.child`, with its own ``.venv`` where it has one.

After each step manifests, panes, ledgers, rows of every state table and what sinks were offered must be equal, and
so must refusals. `child.py` says what of a manifest is not compared. The first difference is printed with the job in
the words of the builder, and the seed to repeat it; the exit code is 1 then.
"""
