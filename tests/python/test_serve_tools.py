"""Tools and evaluations end to end: what an agent's loop and lm_eval do with a server.

Needs the packages openai and jsonschema. Tests on the real model need $CARAT_MODEL_270M, the one with lm_eval that package as well.
"""

import concurrent.futures
import json
import os
import subprocess
import sys

import pytest

openai = pytest.importorskip("openai")
jsonschema = pytest.importorskip("jsonschema")

from serving import CARAT, REAL, TINY, Server, can_serve  # noqa: E402

pytestmark = pytest.mark.skipif(not can_serve(), reason=f"{CARAT} is not built, or has no verb serve")


def tool(name, description, properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}}}


TOOLS = [
    tool("get_weather", "The weather of a city.", {"city": {"type": "string", "enum": ["Oslo", "Rome", "Quito"]},
                                                   "days": {"type": "integer", "minimum": 1, "maximum": 7}}),
    tool("send", "Sends a number.", {"to": {"type": "string", "maxLength": 12}, "urgent": {"type": "boolean"}}),
    tool("send_message", "Sends a message.", {"words": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3}}),
]
SCHEMAS = {entry["function"]["name"]: entry["function"]["parameters"] for entry in TOOLS}
PROMPTS = [f"{what} {where}" for what in ("What is the weather in", "Tell me all about", "Write to my friend in", "How far is", "Who knows")
           for where in ("Oslo?", "Rome, please.", "Quito and Paris!", "the town {\"x\": 1}")]
MODELS = [TINY] + ([REAL] if REAL else [])  # Gemma 4's syntax for calls, and Gemma 3's convention in JSON


@pytest.fixture(scope="module", params=MODELS, ids=["gemma4", "gemma3"][:len(MODELS)])
def client(request):
    server = Server(model=request.param)
    yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600)
    assert server.stop() == 0


def chat(client, messages, **options):
    return client.chat.completions.create(**{"model": "", "messages": messages, "temperature": 0.7, "max_tokens": 200, **options})


def assert_valid(call, name=None):
    assert call.type == "function" and call.id and call.function.name in SCHEMAS
    assert name is None or call.function.name == name
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


@pytest.mark.parametrize("name", [None, *SCHEMAS])
def test_every_forced_call_is_valid(client, name):
    """20 prompts, 20 calls; tools whose name begins another's name can be had."""
    choice = {"type": "function", "function": {"name": name}} if name else "required"

    def call(number):
        return chat(client, [{"role": "user", "content": PROMPTS[number]}], tools=TOOLS, tool_choice=choice, seed=number,
                    parallel_tool_calls=False).choices[0]
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        choices = list(pool.map(call, range(len(PROMPTS))))
    assert len(choices) == 20
    for choice in choices:
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        call, = choice.message.tool_calls
        assert_valid(call, name)


def test_calls_that_nobody_forced_are_valid_too(client):
    """Whatever a model that may call or not does: no call of it breaks its schema, and no tool is made up."""
    said = chat(client, [{"role": "user", "content": "Repeat after me."}], tools=TOOLS, seed=1, max_tokens=40)
    assert said.choices[0].finish_reason in ("stop", "length", "tool_calls")

    def answer(number):
        return chat(client, [{"role": "user", "content": PROMPTS[number]}], tools=TOOLS, seed=number, temperature=1.0, max_tokens=150).choices[0]
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        choices = list(pool.map(answer, range(len(PROMPTS))))
    for choice in choices:
        for call in choice.message.tool_calls or []:
            assert_valid(call)


def test_only_strict_tools_must_have_a_schema_that_is_supported(client):
    odd = tool("odd", "Cannot be bound.", {"n": {"type": "integer", "not": {"const": 3}}})
    messages = [{"role": "user", "content": "Hello"}]
    for strict in (None, False):
        odd["function"]["strict"] = strict
        assert chat(client, messages, tools=[odd, *TOOLS], max_tokens=5).usage.completion_tokens <= 5
    odd["function"]["strict"] = True
    with pytest.raises(openai.BadRequestError, match="not"):
        chat(client, messages, tools=[odd, *TOOLS], max_tokens=5)


def test_a_loop_with_tools(client):
    """Ask, be called, return the results, call on, and answer."""
    messages = [{"role": "system", "content": "You are a helper with tools."}, {"role": "user", "content": "What is the weather in Oslo?"}]
    ids = set()
    for turn in range(3):
        message = chat(client, messages, tools=TOOLS, tool_choice="required", seed=turn, max_tokens=300).choices[0].message
        messages.append(message)  # as the client gives it
        assert message.tool_calls
        for call in message.tool_calls:
            assert_valid(call)
            ids.add(call.id)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps({"degrees": 7, "turn": turn})})
    assert len(ids) == sum(getattr(message, "tool_calls", None) is not None and len(message.tool_calls)
                           for message in messages if not isinstance(message, dict))
    prompt = 0
    for choice in ("none", "auto"):
        answer = chat(client, messages, tools=TOOLS, tool_choice=choice, seed=5, max_tokens=30)
        assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
        if choice == "none":
            assert not answer.choices[0].message.tool_calls
        assert answer.usage.prompt_tokens > 100
        prompt = max(prompt, answer.usage.prompt_tokens_details.cached_tokens)
    assert prompt > 64  # the turns before were not read again


def test_a_streamed_loop_says_the_same(client):
    messages = [{"role": "user", "content": "Write to Rome."}]
    options = {"tools": TOOLS, "tool_choice": "required", "seed": 11}
    whole = chat(client, messages, **options).choices[0].message.tool_calls
    parts = {}
    for chunk in chat(client, messages, stream=True, **options):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                name, arguments = parts.get(call.index, ("", ""))
                parts[call.index] = name + (call.function.name or ""), arguments + (call.function.arguments or "")
    assert list(parts) == list(range(len(whole)))
    assert list(parts.values()) == [(call.function.name, call.function.arguments) for call in whole]


def test_counting_is_what_is_read(client):
    """Anthropic's count of a request with tools is its usage."""
    tools = [{"name": entry["function"]["name"], "description": entry["function"]["description"],
              "input_schema": entry["function"]["parameters"]} for entry in TOOLS]
    body = {"model": "", "max_tokens": 4, "tools": tools, "messages": [{"role": "user", "content": "What is the weather?"}]}
    counted = client.post("/messages/count_tokens", body={name: body[name] for name in ("model", "tools", "messages")}, cast_to=object)
    assert client.post("/messages", body=body, cast_to=object)["usage"]["input_tokens"] == counted["input_tokens"] > 40


LIKELY = """task: carat_cities
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "<bos>The capital of {{country}} is"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
SAID = """task: carat_words
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "<bos>Spain: Madrid. Egypt: Cairo. Norway: Oslo. {{country}}:"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["."], max_gen_toks: 8, temperature: 0}
filter_list: [{name: stripped, filter: [{function: remove_whitespace}]}]
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CITIES = {"France": "Paris", "Italy": "Rome", "Germany": "Berlin", "Japan": "Tokyo", "Russia": "Moscow", "Greece": "Athens"}


@pytest.mark.skipif(not REAL, reason="CARAT_MODEL_270M is not set")
def test_lm_eval(tmp_path):
    """lm_eval's local-completions: likelihoods through echo, and generation."""
    python = os.environ.get("LM_EVAL_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('lm_eval') is None)"], check=False).returncode != 0:
        pytest.skip("lm_eval is not installed ($LM_EVAL_PYTHON names a Python that has it)")
    data = tmp_path / "cities.jsonl"
    data.write_text("".join(json.dumps({"country": country, "choices": [city, "green", "twelve"], "answer": 0}) + "\n"
                            for country, city in CITIES.items()))
    (tmp_path / "likely.yaml").write_text(LIKELY.replace("DATA", str(data)))
    (tmp_path / "said.yaml").write_text(SAID.replace("DATA", str(data)))
    server = Server(model=REAL)
    try:
        run = subprocess.run(
            [python, "-m", "lm_eval", "--model", "local-completions", "--tasks", "carat_cities,carat_words", "--include_path", tmp_path,
             "--batch_size", "1", "--output_path", tmp_path / "out", "--model_args",
             f"model=gemma3-270m,base_url={server.url}/v1/completions,tokenizer_backend=remote,tokenized_requests=True,num_concurrent=2,max_retries=1"],
            capture_output=True, text=True, timeout=900, check=False,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")})
        assert run.returncode == 0, run.stderr[-3000:]
    finally:
        server.stop()
    report = json.loads(next((tmp_path / "out").rglob("results_*.json")).read_text())["results"]
    assert report["carat_cities"]["acc,none"] == 1
    assert report["carat_words"]["exact_match,stripped"] >= 0.5
