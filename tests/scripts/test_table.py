"""Tables for terminals."""

from datetime import UTC, datetime

import pytest

from scripts.table import EMPTY, plain, table


def test_columns_line_up_and_numbers_stand_to_the_right() -> None:
    assert table(["fleet", "waiting", "state"], [["a", 7, "idle"], ["long-one", 1200, "busy"]]) == (
        "fleet     waiting  state\n"
        "a               7  idle\n"
        "long-one     1200  busy"
    )  # fmt: skip


def test_an_empty_list_says_so() -> None:
    assert table(["fleet"], []) == EMPTY


def test_gaps_answers_and_times_can_be_read() -> None:
    at = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
    assert table(["n", "ok", "at"], [[None, True, at], [3, False, None]]) == (
        "n  ok   at\n"
        "-  yes  2026-03-01 12:30:00\n"
        "3  no   -"
    )  # fmt: skip


def test_wide_characters_take_two_places() -> None:
    assert table(["name", "n"], [["日本", 1], ["abcdef", 2]]).splitlines()[1] == "日本    1"


@pytest.mark.parametrize("hostile", ["a\nb", "a\tb", "a\r\n b"])
def test_a_cell_is_one_line(hostile: str) -> None:
    assert table(["error"], [[hostile]]) == "error\na b"


def test_a_cell_does_not_command_the_terminal() -> None:
    shown = table(["error"], [["\x1b[2J\x9b31m gone \u202e"]])
    assert not set(shown) & {"\x1b", "\x9b", "\u202e"}


def test_a_row_of_another_length_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="argument"):
        table(["a", "b"], [["only one"]])


def test_lines_outside_a_table_do_not_command_the_terminal_either() -> None:
    assert plain("one\r\n\ttwo \x1b[2J\u202e") == "one\n        two ?[2J?"
    assert plain(None) == "None"
