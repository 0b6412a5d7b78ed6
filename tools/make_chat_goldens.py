#!/usr/bin/env python3
"""Golden chat renderings: conversations, rendered by Jinja2 with the templates that the models ship.

usage: make_chat_goldens.py GEMMA3.jinja GEMMA4.jinja GEMMA4_INTERLEAVED.jinja > tests/chat/goldens.json

The environment is set up as the transformers library sets it up. Before a conversation reaches a template it is brought
to the template's words (`prepare`); src/chat/chat.h and src/chat/conversation.h say the same in prose.
"""

import argparse
import datetime
import json
import pathlib
import random
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

FORMATS = ("gemma3", "gemma4", "gemma4-interleaved")


# The oracle


class Refused(Exception):
    """The conversation cannot be expressed in a format."""


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda text: datetime.datetime.now().strftime(text)
    return env


def load_templates(paths):
    env = environment()
    return {name: env.from_string(pathlib.Path(path).read_text()) for name, path in zip(FORMATS, paths, strict=True)}


PART_TYPES = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
}


def is_parts(content):
    return isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("type"), str) for p in content)


def prepare_part(part, name):
    if part["type"] not in PART_TYPES:
        raise Refused("part type")
    kind = PART_TYPES[part["type"]]
    if name == "gemma3" and kind in ("audio", "video"):
        raise Refused("no audio or video")
    return {"type": kind, "text": part["text"]} if kind == "text" else {"type": kind}


def prepare_arguments(arguments):
    if isinstance(arguments, str):
        arguments = json.loads(arguments) if arguments.strip() else None
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        raise Refused("arguments")
    return arguments


def result_of(message):
    content = message.get("content")
    if is_parts(content):
        return "".join(part.get("text", "") for part in content if part["type"] == "text")
    return content


def fold_results(messages):
    """Moves the results in tool messages to the message that called."""
    folded = []
    caller = None
    for message in messages:
        if message["role"] != "tool":
            caller = message if message.get("tool_calls") and not message.get("tool_responses") else None
            folded.append(message)
        elif caller is None:
            folded.append(message)
        else:
            name = message["name"]
            for call in caller["tool_calls"]:
                if call.get("id") == message.get("tool_call_id"):
                    name = call["function"]["name"]
            caller.setdefault("pending", []).append({"name": name, "response": result_of(message)})
    for message in folded:
        if "pending" in message:
            message["tool_responses"] = message.pop("pending")
    return folded


def prepare(name, messages):
    messages = json.loads(json.dumps(messages))  # no message twice the same object
    for message in messages:
        if is_parts(message.get("content")):
            message["content"] = [prepare_part(part, name) for part in message["content"]]
        for call in message.get("tool_calls") or []:
            call["function"]["arguments"] = prepare_arguments(call["function"].get("arguments"))
        for response in message.get("tool_responses") or []:
            response["name"] = response.get("name") or "unknown"
        if message["role"] == "tool":
            message["name"] = message.get("name") or "unknown"
        reasoning = message.get("reasoning") or message.get("reasoning_content")
        if reasoning:
            message["reasoning"] = message["reasoning_content"] = reasoning
    first = messages[0]
    if first["role"] in ("system", "developer"):
        if name == "gemma3":
            first["role"] = "system"
        content = first.get("content")
        if isinstance(content, list):
            if any(part["type"] != "text" for part in content):
                raise Refused("system part")
            content = "".join(part["text"] for part in content)
        first["content"] = content or ""
    structured = any(
        m["role"] == "tool" and isinstance(m.get("content"), (dict, list)) and not is_parts(m["content"])
        for m in messages
    )
    if name == "gemma4-interleaved" or (name == "gemma4" and structured):
        messages = fold_results(messages)
    return messages


def render(templates, name, case):
    """The prompt, or None where the format refuses the conversation."""
    options = case["options"]
    variables = {"add_generation_prompt": options.get("add_generation_prompt", True)}
    if "enable_thinking" in options:
        variables["enable_thinking"] = options["enable_thinking"]
    try:
        messages = prepare(name, case["messages"])
        return templates[name].render(messages=messages, tools=case["tools"], bos_token="<bos>", **variables)
    except (Refused, jinja2.exceptions.TemplateError, TypeError, json.JSONDecodeError):
        return None


# Conversations

WORDS = (
    "a the model weather Paris 12 °C naïve Straße 日本語 emoji 🎉 👩‍👩‍👧 say \"hi\" it's {brace} [list] a:b, <b> & \\n end. "
    "İstanbul ΣΊΣΥΦΟΣ \u00ad \u200b"
).split(" ")
SPACES = (" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\x1c", "\x85", "\x0b")
MARKED = (
    "<|channel>thought\nhidden<channel|>",
    "<|channel>thought\n<channel|>",
    "<channel|>",
    "<|channel>cut",
    "<|turn>user\n",
    '<|"|>',
)
NUMBERS = (0, 1, -1, 42, 2**53, 2**63 - 1, 2**64 - 1, -(2**63), 1.5, -0.0, 1e20, 1e16, 1e15, 123456789.125, 1e-4, 1e-5)
NUMBERS += (0.1, 1 / 3, 5e-324, 1.7976931348623157e308, 1e22, 9007199254740993.0, 100.0, -2.5e-7)
NAMES = ("get_weather", "search", "f", "mcp-tool_2", "Überfunktion")
KEYS = ("city", "City", "CITY", "unit", "items", "a", "B", "c", "Z", "ß", "Ä", "ä", "_x", "1", "type", "name", "x y")
TYPES = ("string", "STRING", "number", "integer", "boolean", "array", "object", "null", "straße")


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, p):
        return self.random.random() < p

    def text(self, marked=False):
        r = self.random
        out = ""
        for _ in range(r.choice((0, 1, 1, 2, 3, 6, 12))):
            out += r.choice(MARKED) if marked and self.chance(0.25) else r.choice(WORDS)
            out += " " if self.chance(0.7) else r.choice(SPACES)
        if self.chance(0.3):
            out = r.choice(SPACES) + out
        return out

    def value(self, depth=3):
        r = self.random
        kind = r.choice("snnbz" if depth == 0 else "ssnnbzaoo")
        if kind == "s":
            return self.text()
        if kind == "n":
            return r.choice(NUMBERS)
        if kind == "b":
            return self.chance(0.5)
        if kind == "z":
            return None
        if kind == "a":
            return [self.value(depth - 1) for _ in range(r.randrange(4))]
        return self.object(depth - 1)

    def object(self, depth=2):
        return {key: self.value(depth) for key in self.random.sample(KEYS, self.random.randrange(5))}

    def content(self, marked=False, modal=True):
        r = self.random
        if self.chance(0.7):
            return self.text(marked)
        kinds = ["text", "text", "input_text"] + ["image", "image_url", "audio", "video"] * modal
        parts = []
        for _ in range(r.randrange(4)):
            kind = r.choice(kinds)
            parts.append({"type": kind, "text": self.text(marked)} if "text" in kind else {"type": kind})
        return parts

    def schema(self, depth=3):
        r = self.random
        schema = {}
        if self.chance(0.7):
            schema["description"] = self.text()
        kind = r.random()
        if kind < 0.8:
            schema["type"] = r.choice(TYPES if depth else TYPES[:5])
        elif kind < 0.9:
            schema["type"] = r.sample(TYPES, r.randrange(1, 4))
        if self.chance(0.25):
            schema["nullable"] = r.choice((True, False, None))
        if self.chance(0.2):
            schema["enum"] = r.choice(([], ["a", "b'c"], [1, None, "x"], [True, 1.5, {"k": [1]}]))
        if self.chance(0.1):
            schema["$ref"] = "#/$defs/node"
        if self.chance(0.1):
            schema["anyOf"] = [{"type": "string"}, {"type": "null"}]
        if self.chance(0.15):
            schema["additionalProperties"] = r.choice((True, False, {"type": "string"}))
        if self.chance(0.1):
            schema["minimum"] = r.choice(NUMBERS)
        if self.chance(0.1):
            schema["default"] = self.value(1)
        if depth and ("object" in str(schema.get("type")) or self.chance(0.1)):
            self.add_properties(schema, depth)
        if depth and ("array" in str(schema.get("type")) or self.chance(0.1)):
            schema["items"] = r.choice((self.schema(depth - 1), self.schema(depth - 1), {}, True, None))
        if self.chance(0.5):
            schema = dict(r.sample(list(schema.items()), len(schema)))
        return schema

    def add_properties(self, schema, depth):
        r = self.random
        if self.chance(0.85):
            schema["properties"] = {key: self.schema(depth - 1) for key in r.sample(KEYS, r.randrange(4))}
        if self.chance(0.6):
            schema["required"] = r.sample(KEYS, r.randrange(4))

    def tool(self):
        function = {"name": self.random.choice(NAMES)}
        if self.chance(0.9):
            function["description"] = self.text()
        if self.chance(0.9):
            function["parameters"] = {"type": "object"}
            self.add_properties(function["parameters"], 3)
            if self.chance(0.1):
                del function["parameters"]["type"]
            if self.chance(0.3):
                function["parameters"]["additionalProperties"] = False
        if self.chance(0.15):
            function["response"] = self.random.choice(
                ({"type": "object", "description": self.text()}, {"type": "string"}, {"type": "OBJECT"}, {})
            )
        return {"type": "function", "function": function}

    def call(self, number):
        call = {"type": "function", "function": {"name": self.random.choice(NAMES)}}
        if self.chance(0.9):
            call["id"] = f"call_{number}"
        arguments = self.object()
        kind = self.random.random()
        if kind < 0.5:
            call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=self.chance(0.5))
        elif kind < 0.9:
            call["function"]["arguments"] = arguments
        elif kind < 0.95:
            call["function"]["arguments"] = self.random.choice(("", None, "{}"))
        return call

    def result(self, call):
        message = {"role": "tool"}
        kind = self.random.random()
        if kind < 0.5:
            message["content"] = self.text()
        elif kind < 0.65:
            message["content"] = json.dumps(self.object())
        elif kind < 0.75:
            message["content"] = self.content()
        elif kind < 0.85:
            message["content"] = self.object()
        elif kind < 0.97:
            message["content"] = self.random.choice((None, 17, True, 2.5, [1, "x"]))
        if call.get("id") and self.chance(0.9):
            message["tool_call_id"] = call["id"]
        if self.chance(0.2):
            message["name"] = self.random.choice(NAMES)
        return message

    def assistant(self, calls):
        message = {"role": "assistant"}
        if not calls or self.chance(0.3):
            message["content"] = self.content(marked=True)
        elif self.chance(0.7):
            message["content"] = None
        if self.chance(0.5):
            message[self.random.choice(("reasoning", "reasoning_content"))] = self.text()
        if calls:
            message["tool_calls"] = calls
        return message

    def chain(self):
        """Calls and results, several times over, with or without a closing answer."""
        out = []
        for _ in range(self.random.choice((1, 1, 2, 3))):
            calls = [self.call(n) for n in range(self.random.choice((1, 1, 2)))]
            out.append(self.assistant(calls))
            if self.chance(0.1):
                out[-1]["tool_responses"] = [{"name": "f", "response": self.value()}, {"response": self.value(1)}]
            results = [self.result(call) for call in calls]
            if self.chance(0.15):
                results = results[1:]
            self.random.shuffle(results)
            out += results
        if self.chance(0.6):
            out.append(self.assistant([]))
        return out

    def plain(self):
        """Turns that every format takes."""
        messages = []
        if self.chance(0.5):
            messages.append({"role": self.random.choice(("system", "developer")), "content": self.content(modal=False)})
        for turn in range(self.random.randrange(1, 6)):
            content = self.text(turn % 2) if self.chance(0.7) else [{"type": "text", "text": self.text()}, {"type": "image"}]
            messages.append({"role": "assistant" if turn % 2 else "user", "content": content})
        return messages

    def agentic(self):
        messages = []
        if self.chance(0.5):
            messages.append({"role": self.random.choice(("system", "developer")), "content": self.content(modal=False)})
        for _ in range(self.random.choice((1, 1, 2, 3))):
            if self.chance(0.95):
                messages.append({"role": "user", "content": self.content()})
            messages += self.chain() if self.chance(0.7) else [self.assistant([])]
        if self.chance(0.2):
            messages.append({"role": "user", "content": self.content()})
        if self.chance(0.05):
            messages.append({"role": "system", "content": self.content()})
        if self.chance(0.05):
            messages.append({"role": "tool", "content": "nobody asked"})
        return messages

    def case(self):
        agentic = self.chance(0.7)
        options = {"add_generation_prompt": self.chance(0.7)}
        if self.chance(0.6):
            options["enable_thinking"] = self.chance(0.5)
        if self.chance(0.2):
            options["preserve_thinking"] = self.chance(0.5)
        tools = None
        if agentic and self.chance(0.6):
            tools = [self.tool() for _ in range(self.random.randrange(3))]
        return {"messages": self.agentic() if agentic else self.plain(), "tools": tools, "options": options}


def picked():
    """Conversations chosen by hand: edges that random ones seldom meet."""
    user = {"role": "user", "content": "hi"}
    weather = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather now",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "City"},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                    "days": {"type": ["integer", "null"], "minimum": 1},
                    "where": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
                    "tags": {"type": "array", "items": {"type": ["string", "null"]}},
                    "extra": {"type": "object", "additionalProperties": False},
                    "free": {"type": "object", "additionalProperties": {"type": "string"}, "title": "x"},
                },
                "required": ["city"],
            },
        },
    }
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris","unit":null}'}}
    second = {"id": "c2", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
    asks = {"role": "assistant", "content": None, "reasoning_content": "need both", "tool_calls": [call, second]}
    results = [
        {"role": "tool", "tool_call_id": "c1", "content": '{"t":12}'},
        {"role": "tool", "tool_call_id": "c2", "content": "cold"},
    ]
    system = {"role": "system", "content": "Be brief."}
    chain = [system, user, asks, *results, {"role": "assistant", "content": "Mild."}, {"role": "user", "content": "thanks"}]
    odd_part = {"role": "user", "content": [{"type": "hologram"}]}
    talks_and_calls = {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
    conversations = [
        [user],
        [system],
        [system, user],
        [{"role": "developer", "content": "  dev \n"}, user],
        [{"role": "system", "content": None}, user],
        [{"role": "system"}, user],
        [{"role": "system", "content": [{"type": "text", "text": " a "}, {"type": "text", "text": "b "}]}, user],
        [{"role": "system", "content": [{"type": "image"}]}, user],
        [user, user],
        [{"role": "assistant", "content": "first"}, user],
        [user, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
        [user, {"role": "model", "content": "<|channel>x<channel|>a"}, {"role": "assistant", "content": "b"}],
        [user, {"role": "assistant", "content": None}],
        [user, {"role": "assistant"}],
        [user, {"role": "assistant", "content": "<|channel>thought\na<channel|>b<|channel>c"}],
        [user, {"role": "assistant", "content": "x", "reasoning": "not kept: no calls"}],
        [odd_part],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " what? "}, {"type": "image_url"}]}],
        [{"role": "user", "content": [{"type": "input_audio"}, {"type": "video"}]}],
        [{"role": "user", "content": "\u2003 \x1f x \x85\u2029"}],
        [user, {"role": "tool", "content": "orphan"}],
        [user, asks],
        [user, talks_and_calls],
        [user, talks_and_calls, results[0]],
        [user, {**talks_and_calls, "content": [{"type": "image"}]}, results[0]],
        [user, {**talks_and_calls, "content": [{"type": "image"}]}],
        *[chain[:n] for n in range(3, len(chain) + 1)],
        [user, asks, *results, asks, *results],
        [user, asks, *results, user, asks, *results],
        [user, asks, {"role": "tool", "content": "no id"}, {"role": "tool", "name": "other", "content": None}],
        [user, {**asks, "tool_responses": [{"name": "g", "response": {"b": [1, None], "A": "x"}}]}, *results],
        [user, {**asks, "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
        [user, {**asks, "tool_calls": [{"function": {"name": "f", "arguments": "{broken"}}]}],
        [user, {**asks, "tool_calls": [{"function": {"name": "f", "arguments": "null"}}]}, {"role": "tool"}],
    ]
    for messages in conversations:
        for thinking in (None, True, False):
            options = {} if thinking is None else {"enable_thinking": thinking}
            tools = [weather] if any("tool_calls" in message for message in messages) else None
            yield {"messages": messages, "tools": tools, "options": {"add_generation_prompt": True, **options}}
            if thinking is None and len(messages) > 2:
                yield {"messages": messages, "tools": tools, "options": {"add_generation_prompt": False}}


def cases(seed, count):
    maker = Maker(seed)
    return [maker.case() for _ in range(count)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("templates", nargs=3, metavar="TEMPLATE", help="of Gemma 3, Gemma 4 and Gemma 4 interleaved")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    args = parser.parse_args()
    templates = load_templates(args.templates)
    out = []
    for case in [*picked(), *cases(args.seed, args.count)]:
        expected = {name: render(templates, name, case) for name in FORMATS}
        out.append({**case, "expected": expected})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in out)
    sys.stdout.write("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    main()
