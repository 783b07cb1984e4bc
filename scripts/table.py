"""Tables for people at a terminal: columns line up, numbers stand to the right.

A cell holds one line: what would break it is shown as a space, and what could command the
terminal as `?`. An error text may come from anywhere.
"""

from collections.abc import Sequence
from datetime import datetime
from unicodedata import category, east_asian_width

GAP = "  "
EMPTY = "Nothing to show."


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """One line for the headings and one for each row. No rows: a sentence that says so."""
    if not rows:
        return EMPTY
    cells = [[_text(value) for value in row] for row in rows]
    columns = [list(column) for column in zip(headings, *cells, strict=True)]
    widths = [max(_width(text) for text in column) for column in columns]
    is_number = [_holds_numbers([row[place] for row in rows]) for place in range(len(headings))]
    lines = [
        GAP.join(_padded(*cell) for cell in zip(line, widths, is_number, strict=True)).rstrip()
        for line in [list(headings), *cells]
    ]
    return "\n".join(lines)


def plain(value: object) -> str:
    """Of any number of lines, with nothing in it that could command the terminal."""
    lines = str(value).expandtabs().splitlines()
    return "\n".join(_harmless(line) for line in lines)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return _harmless(_one_line(value))


def _harmless(line: str) -> str:
    return "".join("?" if category(char) in ("Cc", "Cf") else char for char in line)


def _one_line(value: object) -> str:
    return " ".join(str(value).split())


def _width(text: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def _padded(text: str, width: int, to_the_right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if to_the_right else text + space


def _holds_numbers(column: list[object]) -> bool:
    """Numbers, and perhaps gaps between them."""
    known = [value for value in column if value is not None]
    return bool(known) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in known
    )
