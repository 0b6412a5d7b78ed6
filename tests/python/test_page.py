"""The chat page in a real browser, against a scripted server and against `carat serve`.

Needs pytest, playwright and Debian's chromium; skips where one is missing. The browser is $CARAT_CHROMIUM, else `chromium` in the
path. Whatever a test does, it fails when the page raised an error, broke its security policy or asked another server for anything.
"""

import json
import os
import random
import re
import shutil

import pytest

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
expect.set_options(timeout=20000)

from mock_chat_server import DROP, Gate, MockChatServer, Refusal, call, delta, finish, text, thought  # noqa: E402

CHROMIUM = os.environ.get("CARAT_CHROMIUM") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")

DESKTOP = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
NARROW = {"viewport": {"width": 320, "height": 640}, "has_touch": True, "is_mobile": True}


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


# ---- Answers ----


def test_an_answer_appears_while_it_is_made(page, server):
    first, second = Gate(), Gate()
    server.say(first, text("One "), second, text("two **three**"), finish(prompt=1234, cached=1000, completion=56))
    send(page, "Count")
    expect(page.locator(".user .bubble")).to_have_text("Count")
    expect(page.locator(".wait .dot")).to_be_visible()
    expect(page.locator("#send")).to_have_attribute("aria-label", "Stop")
    first.set()
    expect(answers(page).locator(".text")).to_have_text("One")
    expect(answers(page)).to_have_attribute("aria-busy", "true")
    second.set()
    expect(answers(page).locator(".text")).to_have_text("One two three")
    settled(page)
    expect(answers(page).locator("strong")).to_have_text("three")
    expect(answers(page)).to_have_attribute("aria-busy", "false")
    expect(page.locator("#status")).to_have_text("The answer is complete")
    stats = page.locator(".answer .stats").inner_text()
    assert "56 tokens" in stats and "prompt 1,234 (1,000 cached)" in stats and "first token" in stats
    assert server.requests[0][0] == "/v1/chat/completions"
    assert server.last() == {
        "model": "mock",
        "messages": [{"role": "user", "content": "Count"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_server_s_own_speed_is_shown(page, server):
    timed = delta(finish="stop") | {"timings": {"predicted_n": 50, "predicted_per_second": 42.25}}
    server.say(text("fast"), timed, "data: [DONE]\n\n")
    chat(page, "Hello")
    expect(page.locator(".stats")).to_contain_text("42.3 tok/s")
    expect(page.locator(".stats")).to_contain_text("50 tokens")


def test_events_may_be_cut_anywhere(page, server):
    """Comments, all line ends, bytes of a character in two packets."""
    raw = ": hello\r\n\r\n" + "".join(f"data: {json.dumps(text(t), ensure_ascii=False)}\r\n\r\n" for t in ["Zürich ", "😀 ", "漢字"])
    data = raw.encode() + b": keep-alive\n\ndata:" + json.dumps(text(" end")).encode() + b"\r\rdata: [DONE]\n\n"
    pieces = []
    while data:
        n = random.Random(len(data)).randrange(1, 9)
        pieces += [data[:n], 0.001]
        data = data[n:]
    server.say(*pieces)
    chat(page, "Cut")
    expect(answers(page).locator(".text")).to_have_text("Zürich 😀 漢字 end")
    expect(page.locator(".error:visible")).to_have_count(0)


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop(page, server, how):
    server.say(text("As far as this"), Gate(), text(" and no further"), finish())
    send(page, "Talk")
    expect(answers(page).locator(".text")).to_have_text("As far as this")
    page.click("#send") if how == "button" else page.keyboard.press("Escape")
    settled(page)
    assert server.client_left.wait(5)
    expect(answers(page).locator(".text")).to_have_text("As far as this")
    expect(page.locator(".stats")).to_contain_text("stopped")
    expect(page.locator(".error:visible")).to_have_count(0)
    chat(page, "Go on")
    assert roles(server.last()) == [("user", "Talk"), ("assistant", "As far as this"), ("user", "Go on")]


def test_thoughts_are_folded_and_not_sent_back(page, server):
    gate = Gate()
    server.say(thought("Let me *think*"), gate, thought(" more"), text("Done"), finish(reasoning=7))
    send(page, "Riddle")
    summary = page.locator(".thought summary")
    expect(summary).to_contain_text("Thinking")
    expect(page.locator(".thought .md")).to_be_hidden()
    expect(page.locator(".thought em")).to_have_text("think")  # already there, for who opens it
    summary.click()
    expect(page.locator(".thought .md")).to_be_visible()
    gate.set()
    settled(page)
    expect(page.locator(".thought summary")).to_contain_text("Thought for")
    expect(page.locator(".thought .md")).to_have_text("Let me think more")
    expect(page.locator(".stats")).to_contain_text("(7 thinking)")
    chat(page, "Next")
    assert server.last()["messages"][1] == {"role": "assistant", "content": "Done"}


def test_an_answer_cut_inside_a_thought_says_so(page, server):
    server.say(thought("Endless"), finish("length"))
    chat(page, "Riddle")
    expect(page.locator(".stats")).to_contain_text("ended by the token limit")
    expect(page.locator(".thought summary")).to_contain_text("Thought for")


# ---- Editing ----


def test_editing_a_message_cuts_what_followed_and_keeps_it_aside(page, server):
    for name in ("one", "two", "three"):
        chat(page, name)
    page.locator(".user").nth(1).hover()
    page.locator(".user").nth(1).get_by_label("Edit", exact=True).click()
    area = page.get_by_label("Edit message")
    expect(area).to_have_value("two")
    area.fill("TWO")
    area.press("Enter")
    settled(page)
    expect(page.locator(".bubble")).to_have_text(["one", "TWO"])
    expect(answers(page).locator(".text")).to_have_text(["Echo: one", "Echo: TWO"])
    assert roles(server.last()) == [("user", "one"), ("assistant", "Echo: one"), ("user", "TWO")]
    expect(page.locator(".pick")).to_have_text("2/2")
    page.locator(".user").nth(1).hover()
    page.get_by_label("Previous").click()
    expect(page.locator(".bubble")).to_have_text(["one", "two", "three"])
    expect(answers(page).locator(".text")).to_have_text(["Echo: one", "Echo: two", "Echo: three"])


def test_an_edit_can_be_dropped(page, server):
    chat(page, "one")
    page.press("#input", "ArrowUp")
    page.get_by_label("Edit message").fill("other")
    page.keyboard.press("Escape")
    expect(page.locator(".bubble")).to_have_text(["one"])
    assert len(server.requests) == 1


def test_regenerating_keeps_the_alternatives(page, server):
    for reply in ("first", "second", "third"):
        server.say(text(reply), finish())
    chat(page, "Say")
    for _ in range(2):
        page.get_by_label("Regenerate").click()
        settled(page)
    assert [roles(body) for _, _, body in server.requests] == [[("user", "Say")]] * 3
    expect(answers(page).locator(".text")).to_have_text("third")
    expect(page.locator(".pick")).to_have_text("3/3")
    page.get_by_label("Previous").click()
    expect(answers(page).locator(".text")).to_have_text("second")
    page.get_by_label("Previous").click()
    expect(answers(page).locator(".text")).to_have_text("first")
    expect(page.get_by_label("Previous")).to_be_disabled()
    chat(page, "Go on")
    assert roles(server.last()) == [("user", "Say"), ("assistant", "first"), ("user", "Go on")]


# ---- Tools ----


def test_tool_calls_go_round(page, server):
    tool = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    set_field(page, "tools", json.dumps([tool]))
    server.say(
        thought("Two cities"),
        text("Looking."),
        call(0, '{"city":', "get_weather", "call_a"),
        call(0, '"Bern","days":[1,2]}'),
        call(1, '{"city":"Oslo"}', "get_weather", "call_b"),
        finish("tool_calls"),
    )
    chat(page, "Weather?")
    assert server.last()["tools"] == [{"type": "function", "function": tool}]
    expect(page.locator(".call h4")).to_have_text(["get_weather", "get_weather"])
    assert page.locator(".call pre").first.inner_text() == json.dumps({"city": "Bern", "days": [1, 2]}, indent=2)
    boxes = page.get_by_label("Result of get_weather")
    expect(boxes).to_have_count(2)
    expect(boxes.first).to_be_focused()
    boxes.first.fill('{"t": 17}')
    page.get_by_role("button", name="Send results").click()
    assert len(server.requests) == 1  # one result is missing
    expect(boxes.nth(1)).to_be_focused()
    boxes.nth(1).fill("nine <b>degrees</b>")
    server.say(text("Bern is warmer."), finish())
    boxes.nth(1).press("Enter")
    expect(answers(page).nth(1).locator(".text")).to_have_text("Bern is warmer.")
    settled(page)
    assert server.last()["messages"] == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Looking.",
            "reasoning_content": "Two cities",
            "tool_calls": [
                {"id": "call_a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Bern","days":[1,2]}'}},
                {"id": "call_b", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_a", "content": '{"t": 17}'},
        {"role": "tool", "tool_call_id": "call_b", "content": "nine <b>degrees</b>"},
    ]
    expect(boxes).to_have_count(0)
    expect(page.locator(".call").nth(1)).to_contain_text("nine <b>degrees</b>")


def test_a_message_instead_of_a_result_leaves_no_call_unanswered(page, server):
    server.say(call(0, "{}", "f", "call_a"), finish("tool_calls"))
    chat(page, "Call")
    chat(page, "Never mind")
    assert [message["role"] for message in server.last()["messages"]] == ["user", "assistant", "tool", "user"]
    expect(page.get_by_label("Result of f")).to_have_count(0)


# ---- Settings ----


def test_settings_are_in_the_request(page, server):
    values = {"temperature": "0.5", "top_p": "0.9", "top_k": "40", "min_p": "0.05", "max_tokens": "200", "seed": "7"}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for name, value in {**values, "system": "Be brief.", "schema": json.dumps(schema), "tools": json.dumps(tools)}.items():
        set_field(page, name, value)
    page.select_option("[data-setting=thinking]", "on")
    expect(page.locator("#think")).to_have_text("Thinking: on")
    expected = {
        "model": "mock",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        **{name: json.loads(value) for name, value in values.items()},
        "chat_template_kwargs": {"enable_thinking": True},
        "tools": tools,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}},
    }
    chat(page, "Hello")
    assert server.last() == expected
    page.reload()
    ready(page)
    page.keyboard.press("Control+k")
    chat(page, "Hello")
    assert server.last() == expected
    page.click("#think")
    chat(page, "Off")
    assert server.last()["chat_template_kwargs"] == {"enable_thinking": False}
    page.click("#gear")
    page.click("#reset")
    chat(page, "Plain")
    assert set(server.last()) == {"model", "messages", "stream", "stream_options"}


@pytest.mark.parametrize("name, value", [("tools", "[{"), ("tools", '[{"parameters": {}}]'), ("schema", "[]"), ("temperature", "-1"), ("top_k", "1.5")])
def test_a_setting_that_cannot_be_sent_is_named(page, server, name, value):
    set_field(page, name, value)
    page.click("#panel-close")
    send(page, "Hello")
    field = page.locator(f"[data-setting={name}]")
    expect(field).to_be_focused()
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#toast")).to_be_visible()
    assert not server.requests
    expect(page.locator("#input")).to_have_value("Hello")
    field.fill("")
    chat(page, "Hello")
    assert len(server.requests) == 1


def test_models_and_adapters(open_page, server):
    server.models = {"data": [{"id": "base", "reasoning": True}, {"id": "base:poet", "parent": "base", "reasoning": True}, {"id": "small", "reasoning": False}]}
    page = open_page()
    expect(page.locator("#model option")).to_have_text(["base", "base + poet", "small"])
    page.select_option("#model", "base:poet")
    page.click("#think")
    chat(page, "Hello")
    assert server.last()["model"] == "base:poet"
    page.reload()
    ready(page)
    expect(page.locator("#model")).to_have_value("base:poet")
    page.select_option("#model", "small")
    expect(page.locator("#think")).to_be_hidden()
    chat(page, "Hello")
    assert server.last()["model"] == "small" and "chat_template_kwargs" not in server.last()


def test_the_key_is_sent_and_forgotten_with_the_tab(open_page, server):
    server.models = Refusal(401, {"error": {"message": "A key is needed."}})
    page = open_page()
    expect(page.locator("#notice")).to_contain_text("A key is needed.")
    page.click("#notice-settings")
    expect(page.locator("#key")).to_be_focused()
    server.models = {"data": [{"id": "mock"}]}
    page.fill("#key", "secret-key")
    page.press("#key", "Tab")
    expect(page.locator("#notice")).to_be_hidden()
    chat(page, "Hello")
    assert server.requests[-1][1]["Authorization"] == "Bearer secret-key"
    page.reload()
    ready(page)
    chat(page, "Again")
    assert server.requests[-1][1]["Authorization"] == "Bearer secret-key"
    assert "secret-key" not in page.evaluate("JSON.stringify(localStorage)")
    assert "Authorization" not in open_page().context.storage_state()


# ---- Errors ----


@pytest.mark.parametrize(
    "script, shown",
    [
        ([Refusal(400, {"error": {"message": "temperature must be at least 0.", "type": "invalid_request_error"}})], "temperature must be at least 0. (400)"),
        ([Refusal(429, {"error": {"message": "The queue is full."}}, {"Retry-After": "7"})], "The queue is full. (429) Try again in 7 s."),
        ([Refusal(502, "<html><h1>Bad gateway</h1></html>")], "Bad Gateway (502)"),
        ([Refusal(503, "busy")], "busy (503)"),
        ([text("Some "), {"error": {"message": "The model broke."}}], "The model broke."),
        ([text("Some "), DROP], "before the answer was complete"),
        ([text("Some "), "data: {nonsense\n\n"], "no JSON"),
    ],
)
def test_errors_are_shown_and_can_be_retried(page, server, script, shown):
    server.say(*script)
    chat(page, "Hello")
    expect(page.locator(".answer .error")).to_contain_text(shown)
    expect(page.locator(".answer .error")).to_have_attribute("role", "alert")
    if len(script) > 1:
        expect(answers(page).locator(".text")).to_have_text("Some")
    page.get_by_role("button", name="Retry").click()
    settled(page)
    expect(answers(page).locator(".text")).to_have_text("Echo: Hello")
    expect(page.locator(".answer .error")).to_have_count(0)
    assert server.requests[0][2] == server.requests[1][2]


def test_a_server_that_is_gone(page, server):
    page.route("**/v1/**", lambda route: route.abort())
    chat(page, "Hello")
    expect(page.locator(".answer .error")).to_contain_text("cannot be reached")
    page.reload()
    ready(page)
    expect(page.locator("#notice")).to_contain_text("cannot be reached")
    expect(page.locator(".answer .error")).to_contain_text("cannot be reached")
    page.unroute("**/v1/**")
    page.click("#notice-retry")
    expect(page.locator("#notice")).to_be_hidden()
    page.get_by_role("button", name="Retry").click()
    expect(answers(page).locator(".text")).to_have_text("Echo: Hello")


# ---- Conversations ----


def test_conversations_stay(page, server):
    server.say(thought("Hm"), text("# Title\n\nText"), call(0, '{"a":1}', "f", "call_a"), finish("tool_calls"))
    chat(page, "First line\nsecond line")
    page.keyboard.press("Control+k")
    expect(page.locator(".turn")).to_have_count(0)
    chat(page, "Other")
    expect(page.locator("#list .title")).to_have_text(["Other", "First line"])
    page.click("#list .title >> text=First line")
    page.reload()
    ready(page)
    expect(page.locator(".bubble")).to_have_text("First line\nsecond line")
    expect(answers(page).locator("h1")).to_have_text("Title")
    expect(page.locator(".call")).to_contain_text('"a": 1')
    expect(page.locator(".thought summary")).to_contain_text("Thought for")
    expect(page).to_have_title("First line · carat")
    page.get_by_label("Result of f").fill("2")
    page.get_by_label("Result of f").press("Enter")
    settled(page)
    assert [message["role"] for message in server.last()["messages"]] == ["user", "assistant", "tool"]


def test_what_was_written_survives_a_reload_in_the_middle(page, server):
    server.say(text("Half an answer"), Gate(), finish())
    send(page, "Talk")
    expect(answers(page).locator(".text")).to_have_text("Half an answer")
    page.reload()
    ready(page)
    expect(answers(page).locator(".text")).to_have_text("Half an answer")
    expect(page.locator(".stats")).to_contain_text("interrupted")
    assert server.client_left.wait(5)


def test_rename_export_delete(page, server):
    chat(page, "Hello there")
    item = page.locator("#list li")
    more = page.get_by_label("Rename, export or delete")
    more.click()
    page.get_by_role("button", name="Rename", exact=True).click()
    page.get_by_label("Title").fill("New <i>name</i>")
    page.keyboard.press("Enter")
    expect(item.locator(".title")).to_have_text("New <i>name</i>")
    more.click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export", exact=True).click()
    assert download.value.suggested_filename == "New-i-name-i-.json"
    exported = json.loads(open(download.value.path(), encoding="utf-8").read())
    assert exported["title"] == "New <i>name</i>"
    assert [turn["alternatives"][0]["text"] for turn in exported["turns"]] == ["Hello there", "Echo: Hello there"]
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(item).to_have_count(0)
    expect(page.locator(".turn")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".bubble")).to_have_text("Hello there")
    more.click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.reload()
    ready(page)
    expect(item).to_have_count(0)
    assert not page.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('carat.chat.'))")


def test_an_answer_goes_on_while_another_conversation_is_shown(page, server):
    gate = Gate()
    server.say(text("Slow "), gate, text("answer"), finish())
    send(page, "Slow one")
    expect(answers(page).locator(".text")).to_have_text("Slow")
    page.keyboard.press("Control+k")
    chat(page, "Quick one")
    expect(answers(page).locator(".text")).to_have_text("Echo: Quick one")
    gate.set()
    expect(page.locator("#list .dot")).to_have_count(0)
    expect(answers(page).locator(".text")).to_have_text("Echo: Quick one")
    page.click("#list .title >> text=Slow one")
    expect(answers(page).locator(".text")).to_have_text("Slow answer")


def test_deleting_a_conversation_stops_its_answer(page, server):
    server.say(text("Slow"), Gate(), finish())
    send(page, "Talk")
    expect(answers(page).locator(".text")).to_have_text("Slow")
    page.get_by_label("Rename, export or delete").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    assert server.client_left.wait(5)
    expect(page.locator("#list li")).to_have_count(0)
    page.reload()
    ready(page)
    expect(page.locator("#list li")).to_have_count(0)


def test_damaged_storage_does_no_harm(page, server):
    chat(page, "Hello")
    page.evaluate("""() => {
      localStorage.setItem('carat.chat.x', '{"id":"x"');
      localStorage.setItem('carat.chat.y', '{"id":"y","turns":[{"role":"user"}]}');
      localStorage.setItem('carat.settings', 'no');
      sessionStorage.setItem('carat.open', '"y"');
    }""")
    page.reload()
    ready(page)
    expect(page.locator("#list .title")).to_have_text(["Hello"])


def test_a_full_storage_is_said(page, server):
    page.evaluate("() => { try { for (let i = 0; ; ++i) localStorage.setItem('fill' + i, 'x'.repeat(100000)); } catch { /* full */ } }")
    server.say(text("x" * 120000), finish())
    chat(page, "Much")
    expect(page.locator("#toast")).to_contain_text("no room")


# ---- Markdown ----

SAMPLE = """# One

Text with **bold**, *italic*, ***both***, `code`, ~~gone~~ and snake_case_names, 2 * 3 * 4.
A new line. A [link](https://example.com/a_(b) "title"), <https://example.org>, https://example.net/x?y=1.

- one
- two
  - nested
    1. deep
    2. deeper

  more of two
* other list

3. three
4. four
   ```python
   def f():
       return "*not bold*"
   ```

- [x] done
- [ ] open

> quoted
> - list
lazy

| a | b |
|:--|--:|
| 1 | `x \\| y` |
| 2 |

Setext
------

---

~~~
tilde
~~~
```js
const open = 1;
"""


def render(page, source):
    return page.evaluate("(source) => { const root = document.createElement('div'); new MarkdownView(root).show(source); return root.innerHTML; }", source)


def test_markdown(page, server):
    server.say(text(SAMPLE), finish())
    chat(page, "Markdown")
    answer = answers(page).locator(".text")
    expect(answer.locator("h1")).to_have_text("One")
    expect(answer.locator("h2")).to_have_text("Setext")
    expect(answer.locator("p strong").first).to_have_text("bold")
    expect(answer.locator("p > em").first).to_have_text("italic")
    expect(answer.locator("em > strong")).to_have_text("both")
    expect(answer.locator("del")).to_have_text("gone")
    expect(answer.locator("> p").first).to_contain_text("snake_case_names, 2 * 3 * 4.")
    links = answer.locator("a")
    assert [link.get_attribute("href") for link in links.all()] == ["https://example.com/a_(b)", "https://example.org", "https://example.net/x?y=1"]
    for link in links.all():
        assert "noopener" in link.get_attribute("rel") and link.get_attribute("target") == "_blank"
    expect(answer.locator("ul > li > ul > li > ol > li")).to_have_text(["deep", "deeper"])
    expect(answer.locator("ol[start='3'] > li")).to_have_count(2)
    expect(answer.locator("ol .block pre")).to_have_text('def f():\n    return "*not bold*"')
    expect(answer.locator("input[type=checkbox]")).to_have_count(2)
    expect(answer.locator("input:checked")).to_have_count(1)
    expect(answer.locator("blockquote li")).to_have_text("list\nlazy", use_inner_text=True)
    expect(answer.locator("th")).to_have_text(["a", "b"])
    expect(answer.locator("td")).to_have_text(["1", "x | y", "2", ""])
    expect(answer.locator("hr")).to_have_count(1)
    expect(answer.locator("> .block pre")).to_have_text(["tilde", "const open = 1;"])


@pytest.mark.parametrize(
    "source, html",
    [
        ("a*b*c", "<p>a<em>b</em>c</p>"),
        ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
        ("**bold:** x", "<p><strong>bold:</strong> x</p>"),
        ("*a **b*", "<p>*a *<em>b</em></p>"),
        ("`` a`b ``", "<p><code>a`b</code></p>"),
        ("`open", "<p>`open</p>"),
        ("a\\b \\1 \\A \\(x\\)", "<p>a\\b \\1 \\A \\(x\\)</p>"),
        (r"\*no\* \\ \[x\]", r"<p>*no* \ \[x\]</p>"),
        ("1986. A year", '<ol start="1986"><li>A year</li></ol>'),
        ("text\n1986. no list", "<p>text<br>1986. no list</p>"),
        ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
        ("1. a\n  - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"),
        ("#no heading", "<p>#no heading</p>"),
        ("## a ##", "<h2>a</h2>"),
        ("a | b\nno table", "<p>a | b<br>no table</p>"),
        ("&lt;b&gt; &amp;amp;", "<p>&lt;b&gt; &amp;amp;</p>"),
        ("x<br>y", "<p>x<br>y</p>"),
        ("![alt](https://e.com/a.png)", '<p><a href="https://e.com/a.png" target="_blank" rel="noopener noreferrer nofollow">alt</a></p>'),
        ("[a](/etc) [b](//e.com) [c](ftp://e.com)", "<p>[a](/etc) [b](//e.com) [c](ftp://e.com)</p>"),
        ("(https://e.com/a).", '<p>(<a href="https://e.com/a" target="_blank" rel="noopener noreferrer nofollow">https://e.com/a</a>).</p>'),
    ],
)
def test_markdown_cases(page, source, html):
    assert render(page, source) == html


def test_growing_text_renders_as_the_whole(page):
    """At every length, what was rendered piece by piece equals what is rendered at once."""
    seed = int(os.environ.get("CARAT_PAGE_SEED", random.randrange(2**32)))
    draw = random.Random(seed)
    parts = ["a", "b c", "\n", "\n", "\n\n", "- ", "  - ", "1. ", "2) ", "> ", "```", "```\n", "~~~", "# ", "---", "===", "|", "| a | b |\n", "|---|---|\n",
             "*", "**", "_", "`", "[x](", "https://e.com", ")", "    ", "\t", "\\", "<br>", "!", "&amp;", "[ ] ", "~~", "\r\n"]  # fmt: skip
    sources = [SAMPLE] + ["".join(draw.choice(parts) for _ in range(60)) for _ in range(60)]
    failed = page.evaluate("""(sources) => {
      for (const source of sources) {
        const [piecewise, whole] = [document.createElement('div'), document.createElement('div')];
        const view = new MarkdownView(piecewise);
        for (let n = 1; n <= source.length; ++n) {
          view.show(source.slice(0, n));
          new MarkdownView(whole).show(source.slice(0, n));
          if (piecewise.innerHTML !== whole.innerHTML) return [source.slice(0, n), piecewise.innerHTML, whole.innerHTML];
        }
      }
      return null;
    }""", sources)
    assert failed is None, f"seed {seed}"


def test_settled_blocks_are_left_alone(page):
    """Only the end is rendered again, and a growing block of code keeps its element."""
    kept = page.evaluate("""() => {
      const root = document.createElement('div'), view = new MarkdownView(root);
      let text = 'First.\\n\\n- a\\n- b\\n\\n```c\\nint x;\\n';
      view.show(text);
      const nodes = [...root.children];
      for (let i = 0; i < 50; ++i) view.show(text += 'int y' + i + ';\\n');
      const same = nodes.every((node, k) => node === root.children[k]);
      view.show(text += '```\\n\\nThen.\\n\\nEnd.\\n');
      return same && nodes.every((node, k) => node === root.children[k]) && root.children.length === 5;
    }""")
    assert kept


HOSTILE_SIZES = ["*" * 50000, "_a" * 20000, "[" * 50000, "![" * 20000, "`" * 30001 + " " + "``" * 5000, "> " * 5000 + "x", "](" * 20000, "a\n" * 20000,
                 "\n".join(" " * (2 * n) + "- x" for n in range(500)), "- " * 5000, "|" * 20000 + "\n" + "|-" * 20000, "<" * 50000, "h" * 50000, "&" * 50000,
                 "\n" * 50000 + "x", "1. a\n" + "\n" * 20000 + "  b", "**a " * 10000, "*a* " * 10000, "http://" * 5000, "~~" * 20001, "\\" * 50000]  # fmt: skip


def test_no_text_takes_long_to_render(page):
    for source in HOSTILE_SIZES:
        spent = page.evaluate("""(source) => {
          const root = document.body.appendChild(document.createElement('div')), began = performance.now();
          new MarkdownView(root).show(source);
          root.getBoundingClientRect();
          root.remove();
          return performance.now() - began;
        }""", source)
        assert spent < 1500, source[:20]


HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg/onload=window.hacked=1>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "[click](javascript:window.hacked=1)",
    "[click](JaVaScRiPt:window.hacked=1)",
    "[click](&#106;avascript:window.hacked=1)",
    "[click](java\tscript:window.hacked=1)",
    "[click](data:text/html,<script>window.hacked=1</script>)",
    "[click](vbscript:x)",
    "<javascript:window.hacked=1>",
    '[click](https://e.com/"onmouseover="window.hacked=1)',
    "![x](https://evil.example/a.png)",
    "![x](javascript:window.hacked=1)",
    "`<img src=x onerror=window.hacked=1>`",
    "```<img/src=x/onerror=window.hacked=1>\n<script>window.hacked=1</script>\n```",
    "| <img src=x onerror=window.hacked=1> |\n|---|\n| <script>window.hacked=1</script> |",
    "# <style>body{display:none}</style>",
    "<a href='https://evil.example' ping='https://evil.example'>x</a>",
    "<form action=https://evil.example><button>go</button></form>",
    "<link rel=stylesheet href=https://evil.example/a.css><meta http-equiv=refresh content='0;url=https://evil.example'>",
    "</textarea></div></script><script>window.hacked=1</script>",
]


def test_hostile_text_stays_text(page, server):
    evil = "<img src=x onerror=window.hacked=1>"
    server.models = {"data": [{"id": evil}]}
    page.reload()
    ready(page)
    server.say(*[thought(f"{line}\n\n") for line in HOSTILE], *[text(f"{line}\n\n") for line in HOSTILE], call(0, evil, evil, evil), finish("tool_calls"))
    chat(page, evil)
    page.locator(".call textarea").fill(evil)
    server.say(text("ok"), {"error": {"message": evil}})
    page.locator(".call textarea").press("Enter")
    settled(page)
    page.locator(".thought summary").first.click()
    answer = answers(page).first
    for line in HOSTILE[:4] + HOSTILE[18:]:
        expect(answer.locator(".text")).to_contain_text(line)
    expect(page.locator(".answer .error span")).to_have_text(evil)
    expect(page.locator("#model option")).to_have_text(evil)
    for tag in ("script", "img", "iframe", "style", "form", "object", "embed", "link", "meta"):
        expect(page.locator(f"main {tag}, nav {tag}")).to_have_count(0)
    for href in page.locator("#log a").evaluate_all("(links) => links.map((link) => link.href)"):
        assert href.startswith(("https:", "http:", "mailto:")), href
    assert page.locator("#log *").evaluate_all("(all) => all.every((e) => [...e.attributes].every((a) => !a.name.startsWith('on')))")
    assert page.evaluate("window.hacked") is None


def test_copying_code(open_page, server):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    server.say(text("```sh\nls | wc\n\necho\n```"), finish())
    chat(page, "Code")
    page.get_by_label("Copy code").click()
    expect(page.get_by_label("Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "ls | wc\n\necho"


# ---- Looks and keys ----


def brightness(page):
    """Of the background, 0 to 255."""
    return sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3])) / 3


def test_dark_mode_follows_the_system_and_the_switch(open_page):
    page = open_page(color_scheme="dark")
    assert brightness(page) < 60
    page.emulate_media(color_scheme="light")
    assert brightness(page) > 200
    page.click("#theme")
    page.emulate_media(color_scheme="dark")
    assert brightness(page) > 200  # light, whatever the system says
    page.reload()
    ready(page)
    assert brightness(page) > 200
    page.click("#theme")
    page.emulate_media(color_scheme="light")
    assert brightness(page) < 60
    page.click("#theme")
    assert brightness(page) > 200  # as the system


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(open_page, server, scheme):
    """At least 4.5 to 1 between text and what is behind it."""
    page = open_page(color_scheme=scheme)
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


# ---- carat serve ----


def test_against_carat_serve(open_page):
    serving = pytest.importorskip("serving")
    with serving.running() as url:
        page = open_page(url)
        expect(page.locator("#model option").first).not_to_have_text("Default model")
        set_field(page, "max_tokens", "24")
        set_field(page, "temperature", "0")
        chat(page, "What is the capital of France?")
        expect(page.locator(".answer .error")).to_have_count(0)
        expect(page.locator(".stats")).to_contain_text("token")
        first = answers(page).locator(".text").inner_text()
        page.get_by_label("Regenerate").click()
        settled(page)
        assert answers(page).locator(".text").inner_text() == first
