"""Where privfair meets other tools, each loaded only when it is asked for."""
