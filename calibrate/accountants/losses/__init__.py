"""Privacy-loss laws: one small file a dominating pair."""
