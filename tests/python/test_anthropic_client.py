"""The official Anthropic client against `carat serve`.

Needs the packages pytest and anthropic. See serving.py for the server and the model; the tests hold for any model, random weights included.
"""

import json

import pytest

anthropic = pytest.importorskip("anthropic")

from serving import needs_real_model, server_url  # noqa: E402, F401

HELLO = [{"role": "user", "content": "Name three colours."}]
TOOL = {"name": "get_weather", "description": "The weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
                         "required": ["city"], "additionalProperties": False}}
FORCED = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}}


@pytest.fixture(scope="session")
def client(server_url):  # noqa: F811
    return anthropic.Anthropic(base_url=server_url, api_key="none", max_retries=0, timeout=300)


@pytest.fixture(scope="session")
def model(client):
    return client.models.with_raw_response.list().http_response.json()["data"][0]["id"]


def request(model, options):
    """Recent clients know no sampling fields: they go in the body's extras."""
    extras = {name: options.pop(name) for name in ("temperature", "seed") if name in options}
    return {"model": model, "messages": HELLO, "max_tokens": 24, **options, "extra_body": {"temperature": 0, **extras}}


@pytest.fixture
def ask(client, model):
    return lambda **options: client.messages.create(**request(model, options))


@pytest.fixture
def stream(client, model):
    return lambda **options: client.messages.stream(**request(model, options))


@pytest.fixture
def count(client, model):
    def count(**options):
        return client.messages.count_tokens(**{"model": model, "messages": HELLO, **options}).input_tokens
    return count


def comparable(message):
    """Without what differs from one reply to the next."""
    value = message.model_dump()
    value.pop("id")
    for block in value["content"]:
        block.pop("id", None)
        block.pop("parsed_output", None)
    value.pop("parsed_output", None)
    return value


def test_message(ask, model):
    message = ask()
    assert message.id.startswith("msg_") and message.type == "message" and message.role == "assistant"
    assert message.model == model
    assert message.stop_reason in ("end_turn", "max_tokens") and message.stop_sequence is None
    assert [block.type for block in message.content] == ["text"]
    assert message.usage.input_tokens > 3 and 1 <= message.usage.output_tokens <= 24
    assert message.usage.cache_read_input_tokens == 0 and message.usage.cache_creation_input_tokens == 0
    assert message._request_id


@pytest.mark.parametrize("options", [
    {}, {"temperature": 1, "seed": 3}, {"thinking": {"type": "enabled", "budget_tokens": 8}}, pytest.param(FORCED, marks=needs_real_model),
    {"stop_sequences": ["e"]}, {"system": "Be brief."}], ids=["plain", "seed", "thinking", "tool", "stop", "system"])
def test_a_stream_says_the_same(ask, stream, options):
    whole = ask(**options)
    with stream(**options) as events:
        kinds = [event.type for event in events]
        streamed = events.get_final_message()
    assert comparable(streamed) == comparable(whole)
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == len(whole.content)


def test_raw_events(ask):
    kinds = [event.type for event in ask(stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"] and kinds[-2:] == ["message_delta", "message_stop"]


def test_text_stream(ask, stream):
    with stream() as events:
        assert "".join(events.text_stream) == "".join(block.text for block in ask().content)


def test_async_client(server_url, model, ask):  # noqa: F811
    import asyncio

    async def run():
        async with anthropic.AsyncAnthropic(base_url=server_url, api_key="none", max_retries=0) as client:
            many = await asyncio.gather(*[client.messages.create(**request(model, {})) for _ in range(4)])
            return [comparable(message)["content"] for message in many]
    assert asyncio.run(run()) == [comparable(ask())["content"]] * 4


LONG = "The quick brown fox jumps over the lazy dog. " * 40


@pytest.mark.parametrize("options", [
    {}, {"system": "Be brief."}, {"system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
    {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": {"type": "none"}},
    pytest.param(FORCED, marks=needs_real_model), {"thinking": {"type": "adaptive"}},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    {"messages": [*HELLO, {"role": "assistant", "content": "Red."}, {"role": "user", "content": "Another?"}]},
    {"messages": [{"role": "user", "content": LONG}]}])
def test_count_tokens_is_what_the_model_reads(ask, stream, count, options):
    counted = count(**options)
    for _ in range(2):  # the second time the cache has it
        assert ask(**options, max_tokens=1).usage.input_tokens == counted
    with stream(**options, max_tokens=1) as events:
        first = next(event for event in events if event.type == "message_start")
        assert first.message.usage.input_tokens == counted
        assert events.get_final_message().usage.input_tokens == counted


def test_the_cache_is_told_to_those_who_mark_it(ask, count):
    messages = [{"role": "user", "content": [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]}]
    counted = count(messages=messages)
    for _ in range(2):
        usage = ask(messages=messages, max_tokens=1).usage
        assert usage.input_tokens + usage.cache_read_input_tokens == counted


@needs_real_model
def test_forced_tool(ask, model):
    for choice in (FORCED["tool_choice"], {"type": "any", "disable_parallel_tool_use": True}):
        message = ask(**{**FORCED, "tool_choice": choice, "temperature": 1, "max_tokens": 256})
        call, = [block for block in message.content if block.type == "tool_use"]
        assert message.stop_reason == "tool_use"
        assert call.id.startswith("toolu_") and call.name == "get_weather" and call.input["city"] in ("Oslo", "Rome")


@needs_real_model
def test_tool_loop(ask, count, stream):
    """Call, result, call again, as agents do it: each turn reads what the one before said."""
    messages = [{"role": "user", "content": "Weather in Oslo?"}]
    read = 0
    for turn in range(3):
        options = {**FORCED, "messages": messages}
        with stream(**options, max_tokens=256) as events:
            message = events.get_final_message()
        assert message.stop_reason == "tool_use"
        assert message.usage.input_tokens == count(**options) > read
        read = message.usage.input_tokens
        calls = [block for block in message.content if block.type == "tool_use"]
        messages += [{"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": f"Sun {turn}",
                                                   "is_error": turn == 1} for call in calls]}]
    answer = ask(messages=messages, tools=[TOOL])
    assert answer.stop_reason in ("end_turn", "max_tokens", "tool_use") and answer.usage.input_tokens > read


def test_output_format(ask):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
              "additionalProperties": False}
    message = ask(output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=64)
    assert 0 <= json.loads(message.content[0].text)["n"] <= 9


def test_errors(client, ask, count):
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(model="no-such-model")
    assert caught.value.body["type"] == "error" and caught.value.body["error"]["type"] == "not_found_error"
    for options, words in [
            ({"max_tokens": 0}, "max_tokens"),
            ({"messages": [*HELLO, {"role": "assistant", "content": "Red"}]}, "prefill"),
            ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]}, "image"),
            ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]}, "tool_use_id"),
            ({"tool_choice": {"type": "any"}}, "tool_choice"), ({"messages": []}, "messages"),
            ({"messages": [{"role": "user", "content": LONG * 4000}]}, "")]:
        with pytest.raises(anthropic.BadRequestError) as caught:
            ask(**options)
        body = caught.value.body
        assert body["error"]["type"] == "invalid_request_error" and words in body["error"]["message"]
        assert body["request_id"] == caught.value.request_id
        with pytest.raises(anthropic.BadRequestError):
            ask(**options, stream=True)
    with pytest.raises(anthropic.BadRequestError):
        count(messages=[])
