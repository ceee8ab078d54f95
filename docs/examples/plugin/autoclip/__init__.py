"""DP-SGD with automatic clipping, as a package of its own that privfair finds by entry points."""
