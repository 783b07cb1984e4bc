"""Names that people give to things.

A slug is part of addresses, of keys in Redis, of names in AWS. So it is short, and none of its
characters means more than itself there. Beside it stands a name for people to read.
"""

import re
from uuid import UUID

from models.errors import InvalidInput
from models.properties import UNSTORABLE

MAX_LENGTH, NAME_MAX_LENGTH, TEXT_MAX_LENGTH = 63, 200, 2000
#: For the document of the API too. `$` alone would let a newline through.
PATTERN = r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$(?!\n)"
RULE = (
    f"Takes at most {MAX_LENGTH} lower case letters, digits and single hyphens, and begins with "
    "a letter."
)

_SLUG = re.compile(PATTERN)


def check(slug: str, *, field: str = "slug") -> str:
    if len(slug) > MAX_LENGTH or not _SLUG.match(slug):
        raise InvalidInput.field(field, RULE)
    if _is_id(slug):
        raise InvalidInput.field(field, "Looks like an id, and would be taken for one.")
    return slug


def check_name(name: str, *, field: str = "name") -> str:
    if not name.strip() or len(name) > NAME_MAX_LENGTH or UNSTORABLE.search(name):
        raise InvalidInput.field(field, f"Takes 1 to {NAME_MAX_LENGTH} characters.")
    return name


def check_text(text: str, *, field: str) -> str:
    if len(text) > TEXT_MAX_LENGTH or UNSTORABLE.search(text):
        raise InvalidInput.field(field, f"Takes at most {TEXT_MAX_LENGTH} characters.")
    return text


def _is_id(slug: str) -> bool:
    try:
        UUID(slug)
    except ValueError:
        return False
    return True
