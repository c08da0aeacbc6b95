"""A page in a browser and the errors that it reports."""

from __future__ import annotations

from playwright.sync_api import ConsoleMessage, Dialog, Page

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">'


class Watched:
    """A page and its errors: of the console, of scripts, dialogs, failed requests with their reason: requests that a
    navigation ends fail with ERR_ABORTED, which is no error of the page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("requestfailed", lambda request: self.faults.append(f"failed {request.url}: {request.failure}"))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(f"{message.text} {message.location.get('url', '')}")

    def _dismiss(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog {dialog.message}")
        dialog.dismiss()
