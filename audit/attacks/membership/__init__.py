"""Membership inference: was this record in the training data? Attacks, their curves, and what they prove."""
