"""The official OpenAI client against the Responses API of `carat serve`.

Needs the packages pytest and openai. See serving.py for the server and the model; the tests hold for any model, random weights included.
"""

import json

import pytest

openai = pytest.importorskip("openai")

from serving import needs_real_model, server_url  # noqa: E402, F401

HELLO = "Name three colours."
TOOL = {"type": "function", "name": "get_weather", "description": "The weather of a city.", "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
                       "required": ["city"], "additionalProperties": False}}
FORCED = {"tools": [TOOL], "tool_choice": {"type": "function", "name": "get_weather"}, "parallel_tool_calls": False,
          "max_output_tokens": 256}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
          "additionalProperties": False}


@pytest.fixture(scope="session")
def client(server_url):  # noqa: F811
    return openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0, timeout=300)


@pytest.fixture(scope="session")
def model(client):
    return next(iter(client.models.list())).id


@pytest.fixture
def ask(client, model):
    def ask(**options):
        return client.responses.create(**{"model": model, "input": HELLO, "max_output_tokens": 24, "temperature": 0, **options})
    return ask


def comparable(response):
    """Without what differs from one response to the next."""
    value = response.to_dict()
    for name in ("id", "created_at", "completed_at"):
        value.pop(name)
    value["usage"].pop("input_tokens_details")
    for item in value["output"]:
        item.pop("id")
        item.pop("call_id", None)
        item.pop("parsed_arguments", None)
        for part in item.get("content", []):
            part.pop("parsed", None)
    return value


def test_response(ask, model):
    response = ask(metadata={"a": "b"}, instructions="Be brief.")
    assert response.id.startswith("resp_") and response.object == "response" and response.model == model
    assert response.status in ("completed", "incomplete")
    assert (response.incomplete_details is None) == (response.status == "completed")
    assert response.metadata == {"a": "b"} and response.instructions == "Be brief."
    assert [item.type for item in response.output] == ["message"]
    assert response.output_text == response.output[0].content[0].text
    usage = response.usage
    assert usage.input_tokens > 3 and 1 <= usage.output_tokens <= 24
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


OPTIONS = {"plain": {}, "thinking": {"reasoning": {"effort": "low", "summary": "auto"}}, "tool": FORCED,
           "schema": {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}, "max_output_tokens": 64},
           "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2}}


@pytest.mark.parametrize("options", [pytest.param(options, id=name, marks=needs_real_model if options is FORCED else ())
                                     for name, options in OPTIONS.items()])
def test_a_stream_says_the_same(ask, client, model, options):
    whole = ask(**options)
    events = list(ask(**options, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == f"response.{whole.status}"
    assert comparable(events[-1].response) == comparable(whole)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == events[-1].response.output


@needs_real_model
def test_streaming_helper(client, model):
    with client.responses.stream(model=model, input=HELLO, temperature=0, **FORCED) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    call = final.output[-1]
    assert call.type == "function_call" and call.parsed_arguments["city"] in ("Oslo", "Rome")


def test_logprobs(ask):
    response = ask(**OPTIONS["logprobs"])
    logprobs = response.output[0].content[0].logprobs
    assert 1 <= len(logprobs) <= response.usage.output_tokens
    spelled = b"".join(bytes(token.bytes) for token in logprobs).decode(errors="replace")
    assert response.output_text in spelled
    for token in logprobs:
        assert token.logprob <= 0 and len(token.top_logprobs) == 2


def test_schema(ask):
    assert 0 <= json.loads(ask(**OPTIONS["schema"]).output_text)["n"] <= 9


@needs_real_model
def test_tool_loop(ask, client, model):
    """Call, result, call again: by sending everything again, and by previous_response_id. Both read the same."""
    items = [{"role": "user", "content": "Weather in Oslo?"}]
    news = items
    previous = None
    for turn in range(3):
        response = ask(**FORCED, input=news, previous_response_id=previous)
        resent = ask(**FORCED, input=items, store=False)
        assert resent.usage.input_tokens == response.usage.input_tokens
        call = response.output[-1]
        assert call.type == "function_call" and json.loads(call.arguments)["city"] in ("Oslo", "Rome")
        news = [{"type": "function_call_output", "call_id": call.call_id, "output": f"Sun {turn}"}]
        items = [*items, *[item.to_dict() for item in response.output], *news]
        previous = response.id
    counted = client.responses.input_tokens.count(model=model, input=news, previous_response_id=previous, tools=[TOOL])
    answer = ask(input=news, previous_response_id=previous, tools=[TOOL])
    assert answer.usage.input_tokens == counted.input_tokens > response.usage.input_tokens


def test_stored_responses(ask, client):
    first = ask(instructions="Sing.")
    second = ask(input="And another?", previous_response_id=first.id)
    assert client.responses.retrieve(second.id).to_dict() == second.to_dict()
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert items[0].content[0].text == HELLO and items[2].content[0].text == "And another?"
    # The instructions were the first response's alone.
    alone = ask(input=[{"role": "user", "content": HELLO}, {"role": "assistant", "content": first.output_text},
                       {"role": "user", "content": "And another?"}])
    assert alone.usage.input_tokens == second.usage.input_tokens
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(second.id)
    client.responses.delete(second.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list,
                 lambda name: ask(previous_response_id=name)):
        with pytest.raises(openai.NotFoundError):
            call(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(ask(store=False).id)


def test_errors(ask):
    with pytest.raises(openai.NotFoundError) as caught:
        ask(model="no-such-model")
    assert caught.value.code == "model_not_found"
    for options, param in [({"max_output_tokens": 0}, "max_output_tokens"), ({"background": True}, "background"),
                           ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
                           ({"input": []}, "input"), ({"tool_choice": "required"}, "tool_choice"),
                           ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "input")]:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                ask(**options, stream=stream)
            assert caught.value.param == param and caught.value.type == "invalid_request_error"
