"""The officer's desk: pages on this machine for planning, signing, reading the ledger and comparing runs.

`access` says who may look; `app` has the pages; `planner`, `books` and `papers` are what stands on them.
"""
