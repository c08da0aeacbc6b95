"""What Headroom's statements ask of a server, by its release: year and month of its version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OLDEST_SERVER: Final = (25, 8)

# Statements that nest many SELECTs are planned by the earlier planner where a server has it, because it takes half the
# time. Later releases refuse the setting.
EARLIER_PLANNER: Final = "enable_analyzer = 0, "
LAST_WITH_EARLIER_PLANNER: Final = (26, 8)

# From 25.12 on a server looks at the token of an INSERT SELECT only with this setting, earlier ones always.
DEDUPLICATE_SELECT: Final[Mapping[str, str]] = {"deduplicate_insert_select": "enable_even_for_bad_queries"}
