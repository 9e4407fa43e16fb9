#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace hayloft::runtime::grammar {

// The grammar (GBNF) of the JSON texts that a schema allows, with a space or a line break and an indentation at most
// where JSON allows white space. The properties of an object come in the order of the schema. What is supported is what
// OpenAI's structured outputs document: type, properties, required, additionalProperties, items, minItems, maxItems,
// enum, const, anyOf, $ref and $defs (recursive ones too), minLength, maxLength, format, and bounds of numbers;
// annotations are passed over. Throws Error naming the keyword that is not supported, and where it stands.
std::string gbnf_of_schema(const nlohmann::ordered_json& schema);

// The same without the rules of JSON itself, for a grammar that has other rules besides: PREFIXroot, and further rules
// whose names begin with the prefix.
std::string rules_of_schema(const nlohmann::ordered_json& schema, const std::string& prefix);

// The same of the arguments of a call, which are an object: a schema that allows anything else is refused, and one that
// says nothing is that of any object.
std::string rules_of_arguments(const nlohmann::ordered_json& schema, const std::string& prefix);

// The rules of JSON: object, array, string, number, boolean, null, value, and ws, the white space between them.
std::string json_rules();

// The grammar of any JSON object.
std::string gbnf_of_object();

// A text as GBNF quotes it.
std::string gbnf_text(const std::string& text);

}  // namespace hayloft::runtime::grammar
