"""The chat page in headless Chromium: fixtures and steps of the tests of the page.

The browser is $CARAT_CHROMIUM, else `chromium` in the path; tests skip where it or playwright is missing. Whatever a test does, it
fails when the page raised an error, broke its security policy or asked another server for anything.
"""

import os
import re
import shutil

import pytest
from mock_chat_server import MockChatServer

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
expect.set_options(timeout=20000)

CHROMIUM = os.environ.get("CARAT_CHROMIUM") or shutil.which("chromium")
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")

DESKTOP = {"viewport": {"width": 1280, "height": 800}}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        # Chromium's own sandbox refuses to run as root.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield browser
        browser.close()


@pytest.fixture
def server():
    server = MockChatServer()
    yield server
    server.close()


@pytest.fixture
def open_page(browser, server):
    """Opens the page of a server in a fresh profile; keeps an eye on what it asks for and on what goes wrong in it."""
    contexts, asked, wrong = [], [], []

    def open_it(url=None, **options):
        context = browser.new_context(**{**DESKTOP, **options})
        contexts.append(context)
        context.set_default_timeout(20000)
        context.on("request", lambda request: asked.append((url or server.url, request.url)))
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: "Content Security Policy" in message.text and wrong.append(message.text))
        page.goto((url or server.url) + "/")
        ready(page)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert not wrong
    assert asked or not contexts
    for own, url in asked:
        assert url.startswith((own + "/", "data:", "blob:" + own + "/")), url


def ready(page):
    """The models are listed, or why they are not."""
    page.locator("#model option:not([value='']), #notice:visible").first.wait_for(state="attached")


@pytest.fixture
def page(open_page):
    return open_page()


def send(page, message):
    page.fill("#input", message)
    page.press("#input", "Enter")


def settled(page):
    expect(page.locator("body")).not_to_have_class(re.compile("busy"))


def chat(page, message):
    send(page, message)
    settled(page)


def answers(page):
    return page.locator(".answer")


def roles(body):
    return [(message["role"], message["content"]) for message in body["messages"]]


def set_field(page, name, value):
    if not page.locator("#panel").is_visible():
        page.click("#gear")
    page.fill(f"[data-setting={name}]", value)
