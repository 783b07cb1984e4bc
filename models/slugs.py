"""Names that people give to things: parts of addresses, of keys in Redis, of names in AWS.

So they are short, and none of their characters means more than itself there.
"""

import re
from uuid import UUID

from models.errors import InvalidInput

MAX_LENGTH = 63
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


def _is_id(slug: str) -> bool:
    try:
        UUID(slug)
    except ValueError:
        return False
    return True
