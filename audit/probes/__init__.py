"""L0: the production code without noise, on neighbouring data sets; and a short rehearsal of it with noise."""
