"""How a value shows itself: as code that makes it again, and in a notebook, where every text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from html import escape

Row = Sequence[object]


class Pasteable:
    """A dataclass whose `repr` makes it again after `import privfair as pf`."""

    def __repr__(self) -> str:
        shown = []
        for name, value in vars(self).items():
            code = f"pf.{value}" if isinstance(value, Enum) else repr(value)
            if not hasattr(type(self), name):
                shown.append(code)
            elif value != getattr(type(self), name):  # a dataclass keeps a field's default on its class
                shown.append(f"{name}={code}")
        return f"pf.{type(self).__name__}({', '.join(shown)})"


def as_html(
    headline: str,
    text: str = "",
    rows: Iterable[Row] = (),
    *,
    header: Row = (),
    items: Iterable[str] = (),
    code: str = "",
) -> str:
    """The HTML of `_repr_html_`.

    Args:
        headline: shown in bold.
        text: what follows it.
        rows: of a table, left out where there are none.
        header: of the table.
        items: of a list below the table.
        code: lines shown as they are.
    """
    cells = [_row("td", row) for row in rows]
    table = f"<table>{_row('th', header) if header else ''}{''.join(cells)}</table>" if cells else ""
    listed = "".join(f"<li>{escape(item)}</li>" for item in items)
    below = (f"<ul>{listed}</ul>" if listed else "") + (f"<pre>{escape(code)}</pre>" if code else "")
    return f"<p><b>{escape(headline)}</b>{escape(text)}</p>{table}{below}"


def _row(tag: str, cells: Row) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"
