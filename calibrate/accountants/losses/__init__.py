"""Privacy-loss laws: what a dominating pair looks like through its loss."""
