"""One real Chromium, which may ask this machine and no other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from browser.chromium import ARGUMENTS, NoChromium, chromium
from browser.lab import Lab
from support.hub import Hub, running_hub

SCREENSHOTS = "DETLAB_SCREENSHOTS"  # 1: write docs/images anew


@pytest.fixture(scope="session")
def executable(pytestconfig: pytest.Config) -> str:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            return chromium(lambda text: print(text, flush=True))
        except NoChromium as error:
            reason = str(error)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser(executable: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=[*ARGUMENTS])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def keep_images() -> bool:
    return os.environ.get(SCREENSHOTS) == "1"


@pytest.fixture(scope="module")
def addresses() -> list[str]:
    """Of everything that the pages have asked for, WebSockets too."""
    return []


@pytest.fixture(scope="module")
def context(browser: Browser, addresses: list[str]) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.on("request", lambda request: addresses.append(request.url))
    context.on("page", lambda page: page.on("websocket", lambda socket: addresses.append(socket.url)))
    context.set_default_timeout(30_000)
    yield context
    context.close()


@pytest.fixture
def no_request_leaves(addresses: list[str]) -> Iterator[None]:
    """The test fails when a page has asked another machine for something."""
    yield
    assert addresses
    assert [address for address in addresses if not _is_here(address)] == []


def _is_here(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("data", "blob", "about") or parts.hostname == "127.0.0.1"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, executable: str) -> Iterator[Hub]:
    trust = {"DETLAB_SHARED_TRUST": "1"}  # means something where root does not run the tests
    with running_hub(tmp_path_factory.mktemp("hub") / "run", slots=2, environment=trust) as running:
        yield running


@pytest.fixture(scope="module")
def errors() -> list[str]:
    """What went wrong in the pages' scripts."""
    return []


@pytest.fixture(scope="module")
def lab(
    hub: Hub,
    context: BrowserContext,
    errors: list[str],
    keep_images: bool,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    """The page of anna, not logged in yet. Where a test fails, it tells where a picture of the page is."""
    page: Page = context.new_page()
    page.on("pageerror", lambda error: errors.append(error.stack or str(error)))
    failed = request.session.testsfailed
    yield Lab(page, hub, "anna", keep_images=keep_images)
    if request.session.testsfailed > failed:
        picture = tmp_path_factory.mktemp("failed") / "page.png"
        page.screenshot(path=picture)
        print(f"The page at the end: {picture}")
