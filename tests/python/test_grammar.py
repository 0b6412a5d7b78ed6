"""Random schemas: whatever a model could say under their constraint, `jsonschema` accepts.

Needs pytest, jsonschema and a built carat_constrain (beside carat; CARAT_CONSTRAIN names another); skips where one is missing.
CARAT_GRAMMAR_SEED and CARAT_GRAMMAR_CASES choose what is tried.
"""

import json
import os
import pathlib
import random
import re
import subprocess

import pytest

jsonschema = pytest.importorskip("jsonschema")

ROOT = pathlib.Path(__file__).resolve().parents[2]
CARAT = pathlib.Path(os.environ.get("CARAT_BINARY", ROOT / "build" / "release" / "carat"))
TOOL = pathlib.Path(os.environ.get("CARAT_CONSTRAIN", CARAT.parent / "carat_constrain"))
VOCABULARY = ROOT / "tests" / "tokenizer" / "small.json"
SEED = int(os.environ.get("CARAT_GRAMMAR_SEED", 1))
CASES = int(os.environ.get("CARAT_GRAMMAR_CASES", 500))
WALKS = 3

pytestmark = pytest.mark.skipif(not TOOL.is_file(), reason=f"{TOOL} is not built")

KEYS = ["a", "b", "ab", "name", "first name", "é", "x-y", "$v", "type", "items", "a\"b", "k\\", "0", "A"]
PATTERNS = ["^[a-z]+$", "^\\d{3}-\\d{4}$", "a", "^(foo|bar)*$", "[^x]$", "^.{2,5}$", "^\\w+ ?\\w*$", "^#[0-9A-Fa-f]{6}$", "^é+"]
FORMATS = ["date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "hostname", "uri", "duration", "int32"]


class Schemas:
    """Random schemas of the supported subset, that some value satisfies nearly always."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = []

    def chance(self, p):
        return self.random.random() < p

    def document(self):
        self.names = [f"d{i}" for i in range(self.random.randrange(3))]
        schema = self.schema(3)
        if not isinstance(schema, dict):
            schema = {"type": "array", "items": schema, "maxItems": 2}
        if self.names:
            schema["$defs"] = {name: self.leafy(2) for name in self.names}
        return schema

    def leafy(self, depth):
        """Recursive, with a way out."""
        return {"anyOf": [self.scalar(), {"type": "object", "properties": {"next": self.schema(depth - 1)}}]}

    def schema(self, depth):
        kinds = [self.scalar] * 4
        if depth > 0:
            kinds += [self.object, self.object, self.array, self.array, self.any_of, self.all_of, self.anything]
            if self.names:
                kinds += [lambda _: {"$ref": "#/$defs/" + self.random.choice(self.names)}]
        kind = self.random.choice(kinds)
        schema = kind() if kind == self.scalar else kind(depth - 1)
        if isinstance(schema, dict) and "$ref" not in schema and self.chance(0.2):
            schema.update({"description": "x", "title": "y", "default": 1, "examples": [], "x-more": {}})
        return schema

    def anything(self, _):
        return self.random.choice([True, {}])

    def scalar(self):
        kind = self.random.randrange(8)
        if kind == 0:
            return {"type": self.random.choice(["null", "boolean", ["null", "integer"], ["string", "boolean"]])}
        if kind == 1:
            return {"type": "integer"} | self.bounds(lambda: self.random.randrange(-200, 2000))
        if kind == 2:
            return {"type": "number"} | self.bounds(lambda: round(self.random.uniform(-20, 20), self.random.randrange(5)))
        if kind == 3:
            return {"enum": self.random.sample([1, -2.5, None, True, "", "é", "a\"\\", "ab", [1, {"a": "b"}], {"k": [None]}], 3)}
        if kind == 4:
            return {"const": self.random.choice([0, "x", None, [], {"b": 1, "a": [2]}])}
        schema = {"type": "string"}
        if kind == 5:
            schema["pattern"] = self.random.choice(PATTERNS)
        elif kind == 6:
            schema["format"] = self.random.choice(FORMATS)
        else:
            low = self.random.randrange(6)
            schema |= {"minLength": low} if self.chance(0.5) else {}
            schema |= {"maxLength": low + self.random.randrange(20)} if self.chance(0.5) else {}
        return schema

    def bounds(self, draw):
        low, high = sorted([draw(), draw()])
        out = {}
        if self.chance(0.5):
            out[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(0.5):
            out[self.random.choice(["maximum", "exclusiveMaximum"])] = high + 2
        return out

    def object(self, depth):
        keys = self.random.sample(KEYS, self.random.randrange(6))
        schema = {"type": "object", "properties": {key: self.schema(depth) for key in keys}}
        schema["required"] = [key for key in keys if self.chance(0.5)]
        if self.chance(0.1):
            schema["required"].append("unheard of")
        if self.chance(0.5) and "unheard of" not in schema["required"]:
            schema["additionalProperties"] = self.random.choice([False, True, self.schema(depth)])
        return schema

    def array(self, depth):
        schema = {"type": "array"}
        if self.chance(0.8):
            schema["items"] = self.schema(depth)
        if self.chance(0.2):
            schema["prefixItems"] = [self.schema(depth) for _ in range(self.random.randrange(1, 3))]
        low = self.random.randrange(3)
        schema |= {"minItems": low} if self.chance(0.4) else {}
        schema |= {"maxItems": low + self.random.randrange(4)} if self.chance(0.6) else {}
        return schema

    def any_of(self, depth):
        return {"anyOf": [self.schema(depth) for _ in range(self.random.randrange(1, 4))]}

    def all_of(self, depth):
        a, b = self.object(depth), self.object(depth)
        for part in (a, b):
            part.pop("additionalProperties", None)
        return {"allOf": [a, b]}


def constrained(requests):
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    run = subprocess.run([TOOL, VOCABULARY], input=lines, capture_output=True, text=True, check=True, timeout=600)
    return [json.loads(line) for line in run.stdout.split("\n") if line]  # splitlines() also splits at U+2028 and its kin


def no_constant(name):
    raise ValueError(name)


def test_random_schemas():
    draw = Schemas(SEED)
    schemas = [draw.document() for _ in range(CASES)]
    answers = constrained({"schema": schema, "seed": SEED % 1000 + i, "walks": WALKS} for i, schema in enumerate(schemas))
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    refused = 0
    for i, (schema, answer) in enumerate(zip(schemas, answers, strict=True)):
        told = f"seed {SEED}, case {i}: {json.dumps(schema)}"
        if "error" in answer:
            # Two properties of the same name may ask for different types, and many alternatives in alternatives are too large;
            # nothing else is refused here.
            refused += 1
            assert re.search("no value|none of the values|too large", answer["error"]), f"{told}\n{answer}"
            continue
        validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
        assert len(answer["texts"]) == WALKS
        for text in answer["texts"]:
            value = json.loads(text, parse_constant=no_constant)
            errors = [error.message for error in validator.iter_errors(value)]
            assert not errors, f"{told}\n{text}\n{errors}"
    assert refused < CASES * 0.1


@pytest.mark.parametrize("format_name", ["gemma4", "gemma3"])
def test_random_tools(format_name):
    """The calls themselves are read back in tests/grammar; here: any object schema makes a tool."""
    draw = Schemas(SEED + 1)
    requests = []
    for i in range(CASES // 10):
        draw.names = []
        function = {"name": f"tool_{i}", "parameters": draw.object(2)}
        requests.append({"tools": [{"type": "function", "function": function}], "format": format_name, "seed": i})
    for request, answer in zip(requests, constrained(requests), strict=True):
        if "error" in answer:
            assert re.search("no value|none of the values|too large", answer["error"]), f"{request}\n{answer}"
        elif format_name == "gemma4":
            assert answer["texts"][0].startswith("<|tool_call>call:tool_"), answer
        else:
            block = answer["texts"][0].removeprefix("```json\n").removesuffix("\n```")
            calls = json.loads(block)
            for call in calls if isinstance(calls, list) else [calls]:
                jsonschema.validate(call["arguments"], request["tools"][0]["function"]["parameters"])


@pytest.mark.parametrize("format_name", ["gemma4", "gemma3"])
def test_random_tools_called_freely(format_name):
    """A call that was begun in free text is read back, and its arguments are valid."""
    draw = Schemas(SEED + 2)
    requests = []
    for i in range(CASES // 5):
        draw.names = []
        functions = [{"name": f"tool_{i}{tail}", "strict": True, "parameters": draw.object(2)} for tail in ("", "_more")]
        requests.append({"tools": [{"type": "function", "function": function} for function in functions], "format": format_name, "seed": i,
                         "free": True, "walks": WALKS})
    refused = 0
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    for request, answer in zip(requests, constrained(requests), strict=True):
        if "error" in answer:
            refused += 1
            assert re.search("no value|none of the values|too large", answer["error"]), f"{request}\n{answer}"
            continue
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request["tools"]}
        assert len(answer["calls"]) == WALKS
        for calls in answer["calls"]:
            assert calls and calls[0][0].startswith(request["tools"][0]["function"]["name"]), f"{request}\n{answer}"
            for name, arguments in calls:
                errors = [error.message for error in jsonschema.Draft202012Validator(schemas[name], format_checker=checker).iter_errors(arguments)]
                assert not errors, f"{request}\n{name} {arguments}\n{errors}"
    assert refused < len(requests) * 0.3  # either of two
