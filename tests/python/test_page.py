"""What the chat page does, against a scripted server and against `carat serve`."""

import json
import random
import re

import pytest
from mock_chat_server import DROP, Gate, Refusal, call, delta, finish, text, thought
from page_browser import (  # noqa: F401
    answers,
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
    set_field,
    settled,
)
from serving import server_url  # noqa: F401

pytestmark = needs_chromium


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
    pieces = ['data: {"choices":[{"delta":\r', 0.1, '\ndata: {"content":"Start "}}]}\r\n\r\n']
    while data:
        n = random.Random(len(data)).randrange(1, 9)
        pieces += [data[:n], 0.001]
        data = data[n:]
    server.say(*pieces)
    chat(page, "Cut")
    expect(answers(page).locator(".text")).to_have_text("Start Zürich 😀 漢字 end")
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
    expect(page.locator(".thought .md")).to_be_visible()  # still
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


def test_messages_around_a_failed_answer_become_one(page, server):
    """Gemma's templates want user and model to take turns."""
    server.say(Refusal(500, {"error": {"message": "No."}}))
    chat(page, "One")
    chat(page, "Two")
    assert roles(server.last()) == [("user", "One\n\nTwo")]


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


# ---- carat serve ----


def test_against_carat_serve(open_page, server_url):
    page = open_page(server_url)
    expect(page.locator("#notice")).to_be_hidden()
    set_field(page, "max_tokens", "24")
    set_field(page, "temperature", "0")
    chat(page, "What is the capital of France?")
    expect(page.locator(".answer .error")).to_have_count(0)
    expect(page.locator(".stats")).to_contain_text(re.compile(r"first token .* tokens? .*prompt \d+"))
    first = answers(page).locator(".text").inner_text()
    page.get_by_label("Regenerate").click()
    settled(page)
    expect(page.locator(".pick")).to_have_text("2/2")
    assert answers(page).locator(".text").inner_text() == first
    page.evaluate("() => { settings.temperature = '-1'; window.checkFields = () => null; }")  # as if the page did not look
    chat(page, "Hello")
    expect(page.locator(".answer .error")).to_contain_text("temperature")
    expect(page.locator(".answer .error")).to_contain_text("(400)")
