"""The address option of commands that query a running `headroom serve`."""

from __future__ import annotations

from typing import Annotated

import typer

HttpAddress = Annotated[
    str,
    typer.Option(envvar="HEADROOM_HTTP_ADDRESS", help="HTTP address of `headroom serve`; token: HEADROOM_WEB__TOKEN."),
]
