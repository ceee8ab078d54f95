"""Train under a signed budget manifest."""
