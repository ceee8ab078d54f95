"""Shadow models: many stand-ins for the target, trained at once; only their signals are kept."""
