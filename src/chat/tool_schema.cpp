#include "chat/tool_schema.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "chat/call_syntax.h"
#include "chat/jinja_text.h"

namespace carat {
namespace {

using jinja::at;
using jinja::truthy;
using jinja::Value;

std::string delimited(const std::string& text) {
  return std::string(kQuoteMarker) + text + std::string(kQuoteMarker);
}

std::string quoted_list(Value items) {
  std::string out = "[";
  for (const std::string& item : jinja::item_texts(items)) {
    if (out.size() > 1) out += ',';
    out += delimited(item);
  }
  return out + "]";
}

bool is_object(Value value) {
  return value != nullptr && value->is_object();
}

std::string parameters(const Json& properties, bool interleaved);

/// `type` of array items: one name, or a list of them.
std::string item_type(const Json& type) {
  if (type.is_string()) return delimited(jinja::upper(&type));
  Json names = Json::array();
  if (type.is_structured()) {
    for (const std::string& name : jinja::item_texts(&type)) {
      const Json text = name;
      names.push_back(jinja::upper(&text));
    }
  } else {
    names.push_back(jinja::upper(&type));
  }
  return write_value(names, true);
}

/// The inside of items:{...} of an array.
std::string item_fields(const Json& items, bool interleaved) {
  std::string out;
  for (const auto& [key, value] : jinja::dictsort(items)) {
    if (value->is_null()) continue;
    if (!out.empty()) out += ',';
    out += fmt::format("{}:", key);
    if (key == "properties") {
      out += fmt::format("{{{}}}", parameters(*value, interleaved));
    } else if (key == "required") {
      out += quoted_list(value);
    } else if (key == "type") {
      out += item_type(*value);
    } else {
      out += write_value(*value, true);
    }
  }
  return out;
}

/// The nested properties of an object schema; a schema without any lists its own keys in their place.
std::string nested_parameters(const Json& schema, bool interleaved) {
  const Value properties = at(schema, "properties");
  return "properties:{" + parameters(is_object(properties) ? *properties : schema, interleaved) + "}";
}

/// The inside of name:{...}. Fields are separated by commas, except that the interleaved template writes one before
/// every nested field and none after it.
std::string property_fields(const Json& schema, bool interleaved) {
  std::string out;
  bool separate = false;
  const auto field = [&](const std::string& text) {
    if (std::exchange(separate, true)) out += ',';
    out += text;
  };
  const auto nested_field = [&](const std::string& text) {
    if (interleaved) {
      out += "," + text;
    } else {
      field(text);
    }
  };
  const std::string type = jinja::upper(at(schema, "type"));
  const auto write_nullable = [&] {
    if (truthy(at(schema, "nullable"))) field("nullable:true");
  };
  const auto write_object = [&] {
    if (type != "OBJECT") return;
    nested_field(nested_parameters(schema, interleaved));
    const Value required = at(schema, "required");
    if (truthy(required)) nested_field("required:" + quoted_list(required));
  };

  const Value description = at(schema, "description");
  if (truthy(description)) field("description:" + delimited(jinja::to_text(description)));
  if (interleaved) write_nullable();
  if (type == "STRING") {
    const Value choices = at(schema, "enum");
    if (truthy(choices)) field("enum:" + write_value(*choices, true));
  } else if (type == "ARRAY") {
    const Value items = at(schema, "items");
    if (is_object(items) && !items->empty()) nested_field("items:{" + item_fields(*items, interleaved) + "}");
  }
  if (!interleaved) write_nullable();
  write_object();
  field("type:" + delimited(type));
  return out;
}

std::string parameters(const Json& properties, bool interleaved) {
  static constexpr std::array<std::string_view, 5> kKeywords = {"description", "type", "properties", "required",
                                                                "nullable"};
  std::string out;
  for (const auto& [name, schema] : jinja::dictsort(properties)) {
    // The template takes these for keywords of a schema even where they name a parameter.
    if (std::ranges::find(kKeywords, name) != kKeywords.end()) continue;
    if (!out.empty()) out += ',';
    out += name;
    out += ":{" + property_fields(*schema, interleaved) + "}";
  }
  return out;
}

}  // namespace

std::string declare_tool(const Json& tool, bool interleaved) {
  const Value function = at(tool, "function");
  const Value name = function == nullptr ? nullptr : at(*function, "name");
  if (name == nullptr || !name->is_string())
    fail("tools: every tool must be an object with a function that has a name");

  std::string out = "declaration:" + name->get<std::string>();
  out += "{description:" + delimited(jinja::to_text(at(*function, "description")));
  if (const Value schema = at(*function, "parameters"); truthy(schema)) {
    out += ",parameters:{";
    const Value properties = at(*schema, "properties");
    if (truthy(properties)) out += "properties:{" + parameters(*properties, interleaved) + "},";
    const Value required = at(*schema, "required");
    if (truthy(required)) out += "required:" + quoted_list(required) + ",";
    // Only a schema with a type closes the brace: so the template does.
    const Value type = at(*schema, "type");
    if (truthy(type)) out += "type:" + delimited(jinja::upper(type)) + "}";
  }
  if (const Value response = at(*function, "response"); response != nullptr) {
    out += ",response:{";
    const Value description = at(*response, "description");
    if (truthy(description)) out += "description:" + delimited(jinja::to_text(description)) + ",";
    const std::string type = jinja::upper(at(*response, "type"));
    if (type == "OBJECT") out += "type:" + delimited(type) + "}";
  }
  return out + "}";
}

}  // namespace carat
