"""Doubt both: attacks, lower bounds on epsilon, sensitivity checks, verdicts."""
