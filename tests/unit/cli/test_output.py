"""Text of others on somebody's terminal: shown, never obeyed or decorated."""

import json

import pytest

from syncline.cli.output import Output, printable


def test_json_without_odd_characters_stays_as_it_is() -> None:
    text = '{"name": "Zoë", "smile": "😀"}'
    assert printable(text) == text


def test_what_a_terminal_obeys_is_escaped_and_means_the_same() -> None:
    value = {"csi": "\x9b2J", "delete": "\x7f", "override": "\u202e", "tag": "\U000e0001"}
    text = json.dumps(value, ensure_ascii=False, indent=2)
    shown = printable(text)
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert json.loads(shown) == value


def test_a_line_is_printed_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    Output(is_json=False).line("[bold] :key: \\[x]")
    assert capfd.readouterr().out == "[bold] :key: \\[x]\n"


def test_a_note_is_no_part_of_the_output(capfd: pytest.CaptureFixture[str]) -> None:
    Output(is_json=False).note("[by the way] :key:")
    Output(is_json=True).note("not for programs")
    assert capfd.readouterr() == ("", "[by the way] :key:\n")
