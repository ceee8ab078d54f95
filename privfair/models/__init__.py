"""Models as pure functions of a flat parameter vector, with per-record gradients summed without being stored."""
