"""What Headroom's statements ask of a server, by its release: year and month of its version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OLDEST_SERVER: Final = (25, 8)

# From 25.12 on a server looks at the token of an INSERT SELECT only with this setting, earlier ones always.
DEDUPLICATE_SELECT: Final[Mapping[str, str]] = {"deduplicate_insert_select": "enable_even_for_bad_queries"}
