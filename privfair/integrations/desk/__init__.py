"""The officer's desk: pages on this machine for planning, signing, reading the ledger and comparing runs.

`access` says who may look; `app` has the pages; `planner`, `inbox`, `books` and `runs` are what stands on them.
"""
