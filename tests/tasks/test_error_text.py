"""A user is told what went wrong, and nothing of the inside. Workers may send anything."""

import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.error_text import LONGEST, NOTHING_TO_TELL, for_users

TRACE = """Traceback (most recent call last):
  File "/opt/ComfyUI/execution.py", line 345, in execute
    output_data = get_output_data(obj, input_data)
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/ComfyUI/nodes.py", line 12, in sample
    raise ValueError("The mask is empty")
ValueError: The mask is empty"""
SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("The picture is too dark.", "The picture is too dark."),
        ("  Out of\tmemory \n", "Out of memory"),
        ("Broke here\nand there", "Broke here"),
        # ComfyUI's own
        ('{"exception_message": "Mask is empty\\n"}', "Mask is empty"),
        ('{"error_message": "Too long"}', "Too long"),
        ('{"exception_message": " ", "error_message": "Too long"}', "Too long"),
        ('{"type": "execution_error", "data": {"exception_message": "Deep"}}', "Deep"),
        ('[["execution_error", {"node_id": "3", "exception_message": "In a list"}]]', "In a list"),
        ('{"exception_message": "ValueError: Bad seed"}', "Bad seed"),
        ('{"exception_message": ["not", "text"]}', NOTHING_TO_TELL),
        ('{"status": "error", "node": 3}', NOTHING_TO_TELL),
        ('{"exception_message": ""}', NOTHING_TO_TELL),
        # Python's idea of it, or in the middle of a text
        ("{'exception_message': 'Mask is empty', 'node_id': '3'}", "Mask is empty"),
        ("""{'exception_message': "It can't be read"}""", "It can't be read"),
        (r"""{'exception_message': 'It can\'t be read', 'x': 1}""", "It can't be read"),
        ('ComfyUI said {"error_message": "No face found", "a": [1', "No face found"),
        ('error_message = "First line\\nsecond"', "First line"),
        # Tracebacks
        (TRACE, "The mask is empty"),
        (json.dumps({"exception_message": TRACE}), "The mask is empty"),
        ("torch.cuda.OutOfMemoryError: Allocation on device", "Allocation on device"),
        ("Traceback (most recent call last):", NOTHING_TO_TELL),
        ("ValueError", NOTHING_TO_TELL),
        ("KeyError: 3", NOTHING_TO_TELL),
        # What is inside stays inside
        ("Can't open /opt/models/a.safetensors at all", "Can't open … at all"),
        ("Can't open ~/models/a.ckpt", "Can't open …"),
        (r"Can't open C:\Users\Ada Lovelace\a.png at all", "Can't open … at all"),
        (r"Can't open \\server\share\a.png", "Can't open …"),
        (r'{"error_message": "Not in C:\\Users\\Ada\\x"}', "Not in …"),
        (r"{'error_message': 'Not in C:\\Users\\Ada'}", "Not in …"),
        ("No module custom_nodes/secret_pack/nodes.py here", "No module … here"),
        ("Missing input/cat.png", "Missing …"),
        ("Must be image/png and/or image/jpeg", "Must be image/png and/or image/jpeg"),
        (
            "PUT https://bucket.s3.amazonaws.com/k?X-Amz-Signature=abc&X-Amz-Credential=x refused",
            "PUT … refused",
        ),
        ("Lost redis://:secret@10.0.0.4:6379/0", "Lost …"),
        ("Refused by 10.0.0.4:8188 again", "Refused by … again"),
        ("Wrong Authorization: Bearer abcdef here", "Wrong … here"),
        ("Got bearer abcdef back", "Got … back"),
        ("Login with password=hunter2 failed", "Login with … failed"),
        (f"Token {SHA} expired", "Token … expired"),
        ("Key AKIAIOSFODNN7EXAMPLE is wrong", "Key … is wrong"),
        # Nothing to tell
        ("", NOTHING_TO_TELL),
        (" \n\t\r\n ", NOTHING_TO_TELL),
        ("\x00\x01\x1b[", NOTHING_TO_TELL),
        ("?!… --- 42 ___", NOTHING_TO_TELL),
        ("/opt/ComfyUI/nodes.py", NOTHING_TO_TELL),
        (SHA, NOTHING_TO_TELL),
        ("null", "null"),
        # Nothing that hides or turns round
        ("Red\x1b[31m\x07 alert", "Red [31m alert"),
        ("Turn \u202egnp.exe\u202c round", "Turn gnp.exe round"),
    ],
)
def test_what_a_user_is_told(error: str, told: str) -> None:
    assert for_users(error) == told


def test_a_long_sentence_is_cut() -> None:
    told = for_users("very " * 1000)
    assert len(told) <= LONGEST
    assert told.endswith("very…")


HOSTILE = [
    "a." * 2_000_000,
    "/" * 4_000_000,
    "/a " * 1_500_000,
    "a/" * 2_000_000,
    "A" * 4_000_000,
    "[" * 4_000_000,
    '{"a":' * 800_000,
    "error_message: '" * 250_000,
    "error_message" + " " * 4_000_000,
    "error_message='" + "\\" * 4_000_000,
    "\n" * 4_000_000,
    "bearer " * 600_000,
    json.dumps([[["a"] * 100] * 100] * 100),
]


def test_a_huge_error_is_answered_in_no_time() -> None:
    """In a process of its own, because nothing else stops a pattern that runs away."""
    program = (
        "import json\nfrom tests.tasks.test_error_text import HOSTILE\n"
        "from tasks.error_text import for_users\n"
        "for error in HOSTILE: assert for_users(error)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


FRAGMENTS = st.sampled_from(
    [
        "/opt/x",
        "C:\\a\\b",
        "a/b/c",
        "'",
        '"',
        "error_message",
        ":",
        "=",
        "{",
        "\\",
        " ",
        "\n",
        "Bad",
    ]
)


@given(st.text() | st.lists(FRAGMENTS | st.text(max_size=5)).map("".join))
def test_something_is_always_told_and_it_is_never_a_path(error: str) -> None:
    told = for_users(error)
    assert re.search(r"[^\W\d_]{2}", told)
    assert len(told) <= LONGEST
    assert not re.search(r"(?:^|\s)(?:[A-Za-z]:)?[\\/]\w+[\\/]\w", told)
    assert "\n" not in told
