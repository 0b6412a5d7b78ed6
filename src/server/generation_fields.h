// The request fields that the dialects share, read into a task. All throw ApiFailure (request_fields.h).
#pragma once

#include <optional>
#include <string_view>

#include "server/request_fields.h"

namespace carat::server {

/// `model`, `adapter` ("a", "a+b", "a,b", "none") and `adapters` (one id or a list).
void read_model(const Fields& fields, GenerationTask& task);

/// What OpenAI, mlx_lm.server, vLLM and llama-server know of sampling: temperature (0 to `hottest`), top_p (0 keeps the
/// best token alone), top_k (-1 and 0: off), min_p, xtc_probability, xtc_threshold, repetition_penalty or
/// repeat_penalty, presence_penalty, frequency_penalty (-2 to 2), repetition_context_size, presence_context_size,
/// frequency_context_size, seed (any 64-bit integer), logit_bias, hlg. And stop_token_ids, ignore_eos, and priority,
/// where as in vLLM the lower goes first.
void read_sampling(const Fields& fields, GenerationTask& task, double hottest = 2.0);

/// A string or up to `most` strings that end the reply. Empty ones are passed over.
void read_stop(const Fields& fields, std::string_view name, GenerationTask& task, size_t most = 16);

/// The limit of generated tokens in the field `name`, at least `lowest`.
std::optional<int> read_limit(const Fields& fields, std::string_view name, int lowest = 1);

/// The extras that switch thinking: enable_thinking, thinking (true, false or {"type": "enabled" | "disabled"}),
/// chat_template_kwargs.enable_thinking; thinking_budget.
void read_thinking(const Fields& fields, ChatTask& task);

/// OpenAI's effort in the field `name` ("reasoning_effort"; "effort" of a `reasoning` object): "none" and "minimal" are
/// false, "low", "medium", "high" and "xhigh" are true.
std::optional<bool> read_effort(const Fields& fields, std::string_view name);

/// Checks tools in OpenAI's shape: {"type": "function", "function": {"name", "description", "parameters", "strict"}},
/// names of letters, digits, _ and - (1 to 128), each once. `path` names the array in errors.
void check_tools(const Json& tools, std::string_view path = "tools");

/// Checks that `choice` can be kept with these tools, which check_tools() passed: required needs one, a name must be
/// among them.
void check_tool_choice(const ToolChoice& choice, const Json& tools, std::string_view path = "tool_choice");

}  // namespace carat::server
