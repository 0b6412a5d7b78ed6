"""How the chat page looks and is used: colours, keys, scrolling, phones."""

import json
import re

import pytest
from mock_chat_server import Gate, Refusal, call, finish, text, thought
from page_browser import (  # noqa: F401
    browser,
    chat,
    expect,
    needs_chromium,
    open_page,
    page,
    ready,
    roles,
    send,
    server,
    settled,
)

pytestmark = needs_chromium


PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
NARROW = {"viewport": {"width": 320, "height": 640}, "has_touch": True, "is_mobile": True}



def brightness(page):
    """Of the background, 0 to 255."""
    return sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3])) / 3


def test_dark_mode_follows_the_system_and_the_switch(open_page):
    page = open_page(color_scheme="dark")

    def is_now(theme):
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        assert brightness(page) > 200 if theme == "light" else brightness(page) < 60

    is_now("dark")
    page.emulate_media(color_scheme="light")
    is_now("light")
    page.click("#theme")
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(100)
    is_now("light")  # whatever the system says
    page.reload()
    is_now("light")
    page.click("#theme")
    page.emulate_media(color_scheme="light")
    page.wait_for_timeout(100)
    is_now("dark")
    page.click("#theme")
    is_now("light")  # as the system


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(open_page, server, scheme):
    """At least 4.5 to 1 between text and what is behind it."""
    page = open_page(color_scheme=scheme, reduced_motion="reduce")  # no colours on their way
    server.say(thought("T"), text("Text [link](https://e.com) `code`\n\n> quote\n\n```\ncode\n```"), finish())
    chat(page, "Hello")
    server.say(Refusal(400, {"error": {"message": "No."}}))
    chat(page, "Hello")
    page.click("#gear")
    worst = page.evaluate("""() => {
      const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
      const paint = (colors) => {
        canvas.clearRect(0, 0, 1, 1);
        for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
        return canvas.getImageData(0, 0, 1, 1).data;
      };
      const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, k) => {
        const c = rgb[k] / 255;
        return sum + weight * (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
      }, 0);
      const found = [];
      for (const element of document.querySelectorAll('body *')) {
        if (![...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !element.checkVisibility() || element.closest('script, .unseen, select')) continue;
        const behind = [];
        for (let e = element; e; e = e.parentElement) behind.unshift(getComputedStyle(e).backgroundColor);
        const [a, b] = [light(paint(behind)), light(paint([...behind, getComputedStyle(element).color]))];
        found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.textContent.slice(0, 30)]);
      }
      return found.sort((x, y) => x[0] - y[0])[0];
    }""")
    assert worst[0] >= 4.5, worst


def test_keys(page, server):
    page.locator("#input").press_sequentially("one")
    page.keyboard.press("Shift+Enter")
    page.locator("#input").press_sequentially("two")
    assert not server.requests
    page.keyboard.press("Enter")
    settled(page)
    assert roles(server.last()) == [("user", "one\ntwo")]
    page.keyboard.press("Enter")  # nothing to send
    page.keyboard.press("ArrowUp")
    expect(page.get_by_label("Edit message")).to_be_focused()
    expect(page.get_by_label("Edit message")).to_have_value("one\ntwo")
    page.keyboard.press("Escape")
    expect(page.locator("#input")).to_be_focused()
    page.fill("#input", "draft")
    page.keyboard.press("ArrowUp")  # moves in the text
    expect(page.get_by_label("Edit message")).to_have_count(0)
    page.keyboard.press("Control+k")
    expect(page.locator(".turn")).to_have_count(0)
    page.keyboard.press("Meta+k")
    expect(page.locator("#input")).to_be_focused()
    page.click("#gear")
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    expect(page.locator("#gear")).to_be_focused()
    assert len(server.requests) == 1


def test_enter_while_composing_characters_does_not_send(page, server):
    page.fill("#input", "にほん")
    page.evaluate("document.getElementById('input').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true }))")
    page.wait_for_timeout(100)
    assert not server.requests


def test_every_control_has_a_name_and_can_be_reached(page, server):
    chat(page, "Hello")
    page.click("#gear")
    for control in page.locator("button, input, textarea, select").all():
        name = control.evaluate("(e) => e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label')?.textContent.trim()")
        assert name, control.evaluate("(e) => e.outerHTML")
    page.focus("#new")
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label') || document.activeElement.dataset.setting"))
    assert {"menu", "model", "theme", "gear", "Copy", "Edit", "Regenerate", "input", "think", "temperature", "key", "reset"} <= seen


def test_the_end_stays_in_view_only_for_who_is_there(page, server):
    gates = [Gate(), Gate()]
    lines = text("".join(f"line {n}\n\n" for n in range(60)))
    server.say(lines, gates[0], lines, gates[1], lines, finish())
    send(page, "Long")
    at = "document.getElementById('scroll').scrollTop"
    gap = "(() => { const s = document.getElementById('scroll'); return s.scrollHeight - s.scrollTop - s.clientHeight; })()"
    expect(page.locator(".text > p")).to_have_count(60)
    page.wait_for_timeout(100)
    assert page.evaluate(gap) < 2
    page.mouse.move(700, 300)
    page.mouse.wheel(0, -600)
    expect(page.get_by_label("To the latest message")).to_be_visible()
    page.wait_for_timeout(300)
    before = page.evaluate(at)
    gates[0].set()
    expect(page.locator(".text > p")).to_have_count(120)
    page.wait_for_timeout(100)
    assert page.evaluate(at) == before
    page.get_by_label("To the latest message").click()
    gates[1].set()
    settled(page)
    page.wait_for_timeout(100)
    assert page.evaluate(gap) < 2


def test_less_motion_where_it_is_asked_for(open_page, server):
    page = open_page(reduced_motion="reduce")
    server.say(Gate(), finish())
    send(page, "Hello")
    expect(page.locator(".wait .dot")).to_be_visible()
    assert page.locator(".wait .dot").evaluate("(e) => getComputedStyle(e).animationName") == "none"


@pytest.mark.parametrize("device", [PHONE, NARROW], ids=["390", "320"])
def test_on_a_phone(open_page, server, device):
    page = open_page(**device)
    wide = "w" * 300
    server.say(
        thought(wide),
        text(f"{wide} `{wide}` https://example.com/{wide}\n\n# {wide}\n\n```\n{wide} {wide}\n```\n\n| {wide} | a | b | c |\n|--|--|--|--|\n| x | y | z | {wide} |\n\n"),
        text("- a\n  - b\n    - c\n      - d\n        - " + wide),
        call(0, json.dumps({"a": wide}), wide, "call_a"),
        finish("tool_calls", prompt=123456, cached=123455, completion=99999, reasoning=88888),
    )

    def fits():
        width = page.evaluate("[document.documentElement.scrollWidth, document.getElementById('scroll').scrollWidth - document.getElementById('scroll').clientWidth]")
        assert width[0] <= device["viewport"]["width"] and width[1] <= 0, width
        small = page.locator("button:visible, select:visible, input:visible, summary:visible").evaluate_all(
            "(all) => all.filter((e) => { const r = e.getBoundingClientRect(); return e.id !== 'veil' && e.tabIndex >= 0 && (r.width < 43.9 || r.height < 43.9); }).map((e) => e.outerHTML)"
        )
        assert not small
        text_size = page.locator("textarea:visible, input:visible").evaluate_all("(all) => Math.min(...all.map((e) => parseFloat(getComputedStyle(e).fontSize)))")
        assert text_size >= 16  # or phones zoom in

    fits()
    page.fill("#input", "Hello")
    page.tap("#send")
    settled(page)
    fits()
    page.locator(".thought summary").tap()
    page.get_by_label("Edit", exact=True).tap()
    fits()
    page.get_by_role("button", name="Cancel").tap()
    server.say(Refusal(400, {"error": {"message": wide}}))
    page.get_by_label("Regenerate").tap()
    settled(page)
    fits()
    page.tap("#gear")
    fits()
    page.tap("#panel-close")
    expect(page.locator("#panel")).to_be_hidden()
    page.tap("#menu")
    page.get_by_label("Rename, export or delete").tap()
    fits()
    page.touchscreen.tap(device["viewport"]["width"] - 10, 300)  # beside the drawer
    expect(page.locator("#side")).to_be_hidden()
