"""The official OpenAI client against `carat serve`: every route of the dialect, streaming and not.

Needs the packages pytest and openai. See serving.py for the server and the model; most tests hold for any model, random weights included.
"""

import base64
import json
import math
import struct
import time

import pytest

openai = pytest.importorskip("openai")

from serving import needs_real_model, server_url  # noqa: E402, F401

HELLO = [{"role": "user", "content": "Name three colours."}]
GREEDY = {"temperature": 0, "max_tokens": 24}
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
                   "required": ["city"], "additionalProperties": False}}}]
OTHER_TOOL = {"type": "function", "function": {
    "name": "get_weather_forecast", "parameters": {"type": "object", "properties": {"days": {"type": "integer"}},
                                                   "required": ["days"]}}}


@pytest.fixture(scope="session")
def client(server_url):  # noqa: F811
    return openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0, timeout=300)


@pytest.fixture(scope="session")
def model(client):
    return next(iter(client.models.list())).id


def chat(client, model, **options):
    return client.chat.completions.create(**{"model": model, "messages": HELLO, **GREEDY, **options})


def gathered(stream):
    """The choices of a stream put together, and its chunks."""
    chunks = list(stream)
    choices = {}
    for chunk in chunks:
        for part in chunk.choices:
            choice = choices.setdefault(part.index, {"content": "", "reasoning": "", "calls": [], "logprobs": [], "reasons": [],
                                                     "roles": 0})
            delta = part.delta
            choice["roles"] += delta.role is not None
            assert delta.content != "" or delta.role is not None
            choice["content"] += delta.content or ""
            choice["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or []:
                assert call.index == len(choice["calls"]) and call.id and call.type == "function"
                choice["calls"].append((call.function.name, call.function.arguments))
            if part.logprobs:
                choice["logprobs"] += part.logprobs.content
            if part.finish_reason:
                choice["reasons"].append(part.finish_reason)
    return choices, chunks


# Models.


def test_models(client, model):
    listed = client.models.list()
    assert listed.object == "list"
    for entry in listed:
        assert entry.object == "model" and entry.owned_by == "carat" and entry.created > 0 and entry.context_window > 0
    assert client.models.retrieve(model).id == model


def test_unknown_models(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no/such-model")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        chat(client, "no-such-model")


# Chat.


def test_chat(client, model):
    before = int(time.time())
    answer = chat(client, model)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-") and answer.model == model
    assert before - 5 <= answer.created <= time.time() + 5
    choice, = answer.choices
    assert choice.index == 0 and choice.message.role == "assistant" and choice.logprobs is None
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens > 3 and 1 <= usage.completion_tokens <= 24
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0
    assert usage.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize("options", [{}, {"n": 3, "temperature": 1, "seed": 5}, {"logprobs": True, "top_logprobs": 3}])
def test_a_stream_says_the_same(client, model, options):
    whole = chat(client, model, **options)
    choices, chunks = gathered(chat(client, model, stream=True, **options))
    assert sorted(choices) == [choice.index for choice in whole.choices] == list(range(options.get("n", 1)))
    for choice in whole.choices:
        streamed = choices[choice.index]
        assert streamed["roles"] == 1 and streamed["reasons"] == [choice.finish_reason]
        assert streamed["content"] == choice.message.content
        if options.get("logprobs"):
            assert streamed["logprobs"] == choice.logprobs.content
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_of_a_stream(client, model):
    whole = chat(client, model, n=2, seed=1, temperature=1)
    _, chunks = gathered(chat(client, model, n=2, seed=1, temperature=1, stream=True, stream_options={"include_usage": True}))
    assert [chunk.usage is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_seeds(client, model):
    def say(seed):
        return chat(client, model, temperature=1.5, seed=seed).choices[0].message.content
    assert say(1) == say(1)
    assert len({say(seed) for seed in range(4)}) > 1


def test_logprobs(client, model):
    answer = chat(client, model, logprobs=True, top_logprobs=5)
    tokens = answer.choices[0].logprobs.content
    assert 1 <= len(tokens) <= answer.usage.completion_tokens
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 5
        values = [top.logprob for top in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert token.logprob == values[0]  # greedy
        assert sum(math.exp(value) for value in values) < 1.001
        assert bytes(token.bytes).decode(errors="replace") == token.token
    said = b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace")
    assert answer.choices[0].message.content.strip() in said


def test_stop_strings(client, model):
    text = chat(client, model).choices[0].message.content
    if len(text) < 6:
        pytest.skip("the model says too little")
    stop = text[3:6]
    expected = text[:text.index(stop)]
    for stops in (stop, ["never said", stop]):
        answer = chat(client, model, stop=stops)
        assert answer.choices[0].message.content == expected and answer.choices[0].finish_reason == "stop"
    choices, _ = gathered(chat(client, model, stop=stop, stream=True))
    assert choices[0]["content"] == expected and choices[0]["reasons"] == ["stop"]


def test_logit_bias(client, model):
    first = chat(client, model, max_tokens=1, logprobs=True).choices[0].logprobs.content[0]
    forced = chat(client, model, max_tokens=3, logprobs=True, logit_bias={"65": 100})
    tokens = [token.token for token in forced.choices[0].logprobs.content]
    assert len(set(tokens)) == 1 and tokens[0] != first.token


def test_limits(client, model):
    for name in ("max_tokens", "max_completion_tokens"):
        answer = chat(client, model, extra_body={"ignore_eos": True}, **{name: 2, **({} if name == "max_tokens" else {"max_tokens": 9})})
        assert answer.usage.completion_tokens == 2 and answer.choices[0].finish_reason == "length"


def test_conversations(client, model):
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Again?"}]
    assert chat(client, model, messages=messages, user="someone", metadata={"a": "b"}).usage.prompt_tokens > 8


@pytest.mark.parametrize("options, param", [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}, "messages[0].content[0]"),
    ({"temperature": 3}, "temperature"),
    ({"n": 100}, "n"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nothing"}}}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"max_tokens": 0}, "max_tokens"),
])
@pytest.mark.parametrize("stream", [False, True])
def test_refusals(client, model, options, param, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, model, stream=stream, **options)
    assert caught.value.type == "invalid_request_error" and caught.value.param == param


def test_prompts_beyond_the_context(client, model):
    context = client.models.retrieve(model).context_window
    with pytest.raises(openai.BadRequestError):
        chat(client, model, messages=[{"role": "user", "content": "a b c d " * context}])


def test_leaving_a_stream(client, model):
    for _ in range(3):
        with chat(client, model, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}) as stream:
            next(iter(stream))
    assert chat(client, model, max_tokens=1).usage.completion_tokens == 1


# Tools and formats.


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_forced_tool_calls(client, model, choice, stream):
    tools = [*TOOLS, OTHER_TOOL] if isinstance(choice, dict) else TOOLS
    for seed in range(3):
        options = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False, "temperature": 1, "seed": seed,
                   "max_tokens": 200}
        if stream:
            calls = gathered(chat(client, model, stream=True, **options))[0][0]["calls"]
        else:
            message = chat(client, model, **options).choices[0].message
            calls = [(call.function.name, call.function.arguments) for call in message.tool_calls]
            assert message.content is None
        (name, arguments), = calls
        assert name == "get_weather" and json.loads(arguments)["city"] in ("Oslo", "Rome")


def test_tool_results(client, model):
    messages = [*HELLO,
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\":\"Oslo\"}"}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": "snow"}]
    answer = chat(client, model, messages=messages, tools=TOOLS, tool_choice="none")
    assert answer.choices[0].message.tool_calls is None


def test_json_schemas(client, model):
    schema = {"type": "object", "properties": {"colour": {"type": "string", "enum": ["red", "blue"]},
                                               "bright": {"type": "boolean"}},
              "required": ["colour", "bright"], "additionalProperties": False}
    for seed in range(3):
        answer = chat(client, model, temperature=1, seed=seed, max_tokens=200, response_format={
            "type": "json_schema", "json_schema": {"name": "colour", "schema": schema, "strict": True}})
        value = json.loads(answer.choices[0].message.content)
        assert sorted(value) == ["bright", "colour"] and value["colour"] in ("red", "blue") and isinstance(value["bright"], bool)
        assert answer.choices[0].finish_reason == "stop"


# Completions.


def complete(client, model, **options):
    return client.completions.create(**{"model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12, **options})


def test_completions(client, model):
    answer = complete(client, model)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.choices[0].text and answer.choices[0].logprobs is None
    stream = list(complete(client, model, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.text for chunk in stream for part in chunk.choices) == answer.choices[0].text
    assert stream[-2].choices[0].finish_reason == answer.choices[0].finish_reason
    assert stream[-1].usage.completion_tokens == answer.usage.completion_tokens


def test_prompts_in_every_form(client, model, server_url):  # noqa: F811
    ids = client.post(f"{server_url}/tokenize", body={"content": "Once upon a time", "add_special": True}, cast_to=object)["tokens"]
    text = complete(client, model).choices[0].text
    assert complete(client, model, prompt=ids).choices[0].text == text
    several = complete(client, model, prompt=["Once upon a time", "The sky"])
    assert [choice.index for choice in several.choices] == [0, 1] and several.choices[0].text == text
    assert [choice.text for choice in complete(client, model, prompt=[ids, ids], n=2).choices] == [text] * 4


def test_echo_with_logprobs(client, model):
    """What lm_eval does to find out how likely a text is."""
    prompt = "Once upon a time"
    alone = complete(client, model, max_tokens=1, logprobs=1, echo=True)
    choice = alone.choices[0]
    assert choice.text.startswith(prompt)
    marks = choice.logprobs
    assert len(marks.tokens) == len(marks.token_logprobs) == len(marks.top_logprobs) == len(marks.text_offset)
    assert len(marks.tokens) == alone.usage.prompt_tokens + 1
    assert marks.token_logprobs[0] is None and all(value <= 0 for value in marks.token_logprobs[1:])
    for token, value, top in zip(marks.tokens[1:], marks.token_logprobs[1:], marks.top_logprobs[1:]):
        assert top[token] == value and max(top.values()) >= value
    for start, token in zip(marks.text_offset[1:-1], marks.tokens[1:-1]):
        assert choice.text[start:start + len(token)] == token
    nothing = complete(client, model, max_tokens=0, logprobs=1, echo=True).choices[0]
    assert nothing.text == prompt and nothing.logprobs.token_logprobs == marks.token_logprobs[:-1]


@needs_real_model
def test_likelihoods_of_the_real_model(client, model):
    def likelihood(city):
        answer = complete(client, model, prompt=f"The capital of France is {city}", max_tokens=0, logprobs=1, echo=True)
        return sum(answer.choices[0].logprobs.token_logprobs[1:])
    assert likelihood("Paris") > max(likelihood("Oslo"), likelihood("green")) + 1


def test_best_of(client, model):
    answer = complete(client, model, temperature=1, seed=3, n=2, best_of=4, logprobs=0)
    assert len(answer.choices) == 2 and answer.usage.completion_tokens > 12
    means = [sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs) for choice in answer.choices]
    assert means[0] >= means[1]


@pytest.mark.parametrize("options, param", [({"prompt": []}, "prompt"), ({"suffix": "end"}, "suffix"), ({"logprobs": 50}, "logprobs"),
                                            ({"best_of": 2, "stream": True}, "best_of"), ({"max_tokens": -1}, "max_tokens")])
def test_refused_completions(client, model, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, model, **options)
    assert caught.value.param == param


# The other routes.


def test_embeddings(client, model):
    answer = client.embeddings.create(model=model, input=["red", "blue", "red"])
    vectors = [entry.embedding for entry in answer.data]
    assert [entry.index for entry in answer.data] == [0, 1, 2] and vectors[0] == vectors[2] != vectors[1]
    assert all(math.isclose(sum(x * x for x in vector), 1, rel_tol=1e-4) for vector in vectors)
    assert answer.usage.prompt_tokens >= 6
    coded = client.post("/embeddings", body={"model": model, "input": "red", "encoding_format": "base64"}, cast_to=object)
    raw = base64.b64decode(coded["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == pytest.approx(vectors[0], abs=1e-7)
    short = client.embeddings.create(model=model, input="red", dimensions=8, encoding_format="float").data[0].embedding
    scale = math.sqrt(sum(x * x for x in vectors[0][:8]))
    assert short == pytest.approx([x / scale for x in vectors[0][:8]], abs=1e-5)
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model=model, input="")


def test_tokenize(client, server_url):  # noqa: F811
    def post(route, body):
        return client.post(f"{server_url}/{route}", body=body, cast_to=object)
    text = "Héllo, wörld! 😀"
    answer = post("tokenize", {"content": text, "with_pieces": True})
    ids = [token["id"] for token in answer["tokens"]]
    assert answer["count"] == len(ids) and post("tokenize", {"content": text})["tokens"] == ids
    assert post("detokenize", {"tokens": ids})["content"] == text
    special = post("tokenize", {"content": text, "add_special": True})["tokens"]
    assert special[1:] == ids


def test_adapters(client, server_url):  # noqa: F811
    assert client.get(f"{server_url}/v1/adapters", cast_to=object) == {"adapters": []}
    with pytest.raises(openai.NotFoundError):
        client.delete(f"{server_url}/v1/adapters/none-such", cast_to=object)
