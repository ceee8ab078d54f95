"""The experiments behind the pages of docs/experiments, one folder or module per page: `make experiments NAME=fpfl`."""

from pathlib import Path

PAGES = Path(__file__).parents[1]
"""Where pages, templates and figures are; their rows are in `data`."""
