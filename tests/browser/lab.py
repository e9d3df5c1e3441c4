"""What a person does in a browser: log in, start a server, work in JupyterLab."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, WebSocket, expect

from support.cluster import REPO, wait_for
from support.hub import Hub

IMAGES = REPO / "docs" / "images"
LARGEST_IMAGE = 200_000  # bytes
_CONTROL = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>])|\r")
RAN = re.compile(r"\[\d+\]:")  # the prompt of a cell that has run


class Lab:
    """One person's page."""

    def __init__(self, page: Page, hub: Hub, name: str, *, keep_images: bool) -> None:
        self.page = page
        self.hub = hub
        self.name = name
        self.keep_images = keep_images
        self._heard = ""  # of terminals
        page.on("websocket", self._hear_terminal)

    # ---- the Hub

    def log_in(self) -> None:
        self.page.goto(self.hub.url)
        self.page.get_by_label("Username").fill(self.name)
        self.page.locator("#password_input").fill(self.hub.passwords["user"])
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_selector("#detlab-pools")

    def start_server(self) -> None:
        """Press Start on the spawn page; JupyterLab opens by itself."""
        self.page.get_by_role("button", name="Start").click()
        self.page.wait_for_url(f"**/user/{self.name}/lab**", timeout=60_000)
        self._wait_for_lab()

    def reload(self) -> None:
        self.page.reload()
        self._wait_for_lab()

    def _wait_for_lab(self) -> None:
        expect(self.page.locator("#jp-main-dock-panel")).to_be_visible(timeout=60_000)
        expect(self.page.locator("#jupyterlab-splash")).to_have_count(0, timeout=60_000)

    # ---- notebooks

    def open(self, folder: str, file: str) -> None:
        """Open a notebook in a folder of the home, from the file browser."""
        files = self.page.locator(".jp-DirListing-content")
        if not files.get_by_text(file, exact=True).is_visible():
            files.get_by_text(folder, exact=True).dblclick()
        files.get_by_text(file, exact=True).dblclick()
        expect(self.page.locator(".jp-Notebook .jp-CodeCell").first).to_be_visible()

    def toggle_files(self) -> None:
        """Hide the file browser, or show it again."""
        self.page.locator(".jp-SideBar.jp-mod-left .lm-TabBar-tab").first.click()

    def wait_for_kernel(self) -> None:
        """Until it is ready to run cells."""
        expect(self.page.locator(".jp-NotebookPanel-toolbar:visible")).to_contain_text("Python 3")
        expect(self._status("idle")).to_have_count(1, timeout=60_000)

    def _status(self, status: str) -> Locator:
        return self.page.locator(
            f'.jp-NotebookPanel-toolbar:visible .jp-Notebook-ExecutionIndicator[data-status="{status}"]'
        )

    def cell(self, source: str) -> Locator:
        """The code cell whose source holds this text."""
        cells = self.page.locator(".jp-Notebook .jp-CodeCell")
        return cells.filter(has=self.page.locator(".jp-InputArea-editor", has_text=source))

    def start_cell(self, cell: Locator) -> None:
        """Select a cell and press Shift+Enter."""
        cell.locator(".jp-InputArea-prompt").first.click()
        self.page.keyboard.press("Shift+Enter")

    def run(self, cell: Locator, timeout: float = 60.0) -> None:
        """Run a cell and wait for its end; AssertionError when it failed."""
        self.start_cell(cell)
        expect(cell.locator(".jp-InputArea-prompt").first).to_have_text(RAN, timeout=timeout * 1000)
        failed = cell.locator(
            '[data-mime-type="application/vnd.jupyter.error"], [data-mime-type="application/vnd.jupyter.stderr"]'
        )
        assert failed.count() == 0, failed.all_inner_texts()

    def add_cell(self, below: Locator, source: str) -> Locator:
        """Type a new cell below another one."""
        below.locator(".jp-InputArea-prompt").first.click()
        self.page.keyboard.press("b")
        self.page.keyboard.press("Enter")
        self.page.keyboard.insert_text(source)
        return self.cell(source)

    def output(self, cell: Locator) -> str:
        return "\n".join(cell.locator(".jp-OutputArea-output").all_inner_texts())

    def save(self) -> None:
        """Ctrl+S, and wait until it is done."""
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("Control+s")
        expect(self.page.locator(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty")).to_have_count(0)

    def close(self, file: str) -> None:
        """Close a notebook's tab."""
        tab = self.page.locator("#jp-main-dock-panel .lm-TabBar-tab", has_text=file)
        tab.locator(".lm-TabBar-tabCloseIcon").click()
        expect(tab).to_have_count(0)

    def menu(self, *names: str) -> None:
        """Choose from the menus at the top."""
        self.page.locator(".lm-MenuBar-item", has_text=names[0]).click()
        for name in names[1:]:
            self.page.locator(".lm-Menu-item:visible").get_by_text(name, exact=True).click()

    def scroll_to(self, place: Locator, up: int = 40) -> None:
        """Bring something to the upper end of the notebook, `up` pixels below its edge."""
        place.evaluate(
            """(element, up) => {
                const scroller = element.closest(".jp-WindowedPanel-outer, .jp-Notebook");
                scroller.scrollTop += element.getBoundingClientRect().top - scroller.getBoundingClientRect().top - up;
            }""",
            up,
        )

    def point_at(self, place: Locator) -> None:
        """Move the mouse onto something, also where that replaces it by something else."""
        box = place.bounding_box()
        assert box is not None
        self.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def look(self) -> None:
        """Let what the page has sent meanwhile arrive here; Playwright calls listeners only while it is asked."""
        self.page.evaluate("0")

    # ---- terminals

    def terminal(self) -> None:
        """Open a terminal of JupyterLab, and wait for its prompt."""
        self.menu("File", "New", "Terminal")
        expect(self.page.locator(".jp-Terminal .xterm-screen")).to_be_visible()
        wait_for(lambda: self.terminal_text().strip(), "the terminal shows a prompt", 30)

    def _hear_terminal(self, socket: WebSocket) -> None:
        if "/terminals/websocket/" in socket.url:
            socket.on("framereceived", self._hear_frame)

    def _hear_frame(self, frame: str | bytes) -> None:
        kind, *content = json.loads(frame)
        if kind == "stdout":
            self._heard += content[0]

    def terminal_text(self) -> str:
        """What the terminal has been told to show (it draws that on a canvas), without control sequences."""
        self.look()
        return _CONTROL.sub("", self._heard)

    def type_line(self, line: str) -> None:
        self.page.locator(".jp-Terminal").click()
        self.page.keyboard.type(line)
        self.page.keyboard.press("Enter")

    # ---- pictures

    def picture(self, name: str) -> None:
        """The page as it is now, into docs/images when asked for."""
        keep_picture(self.page, name, keep=self.keep_images)


def keep_picture(page: Page, name: str, *, keep: bool, **options: Any) -> None:
    """A screenshot into docs/images, small enough to be kept in the repository."""
    if not keep:
        return
    IMAGES.mkdir(parents=True, exist_ok=True)
    file = Path(IMAGES, f"{name}.png")
    page.screenshot(path=file, animations="disabled", **options)
    assert file.stat().st_size < LARGEST_IMAGE, f"{file} is too large"
