"""The one error that a bad file, column or schema gets."""

from __future__ import annotations

from calibrate.errors import InvalidInput, PrivfairError


class BadData(InvalidInput):
    """A file breaks a rule of its schema; the message names file, column, line, rule and remedy.

    The message may show one offending cell. It is meant for the person who holds the file: it is raised
    before anything is published and never crosses the border of the silo.
    """

    def __init__(
        self, file: str, rule: str, remedy: str, *, column: str | None = None, line: int | None = None
    ) -> None:
        super().__init__(file, column, rule, remedy)
        self.file = file
        self.column = column
        self.line = line
        place = file
        if column is not None:
            place += f", column {column!r}"
        if line is not None:
            place += f", line {line}"
        # InvalidInput's own sentence would read "file = column": say the place instead.
        PrivfairError.__init__(self, f"{place}: {rule}; {remedy}")
