#include "runtime/grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <vector>

#include "offload/error.h"
#include "offload/text/ordered_json.h"
#include "offload/text/visible.h"
#include "runtime/grammar/schema_formats.h"
#include "runtime/grammar/schema_numbers.h"

namespace hayloft::runtime::grammar {
namespace {

using nlohmann::ordered_json;

constexpr int kMostSchemaDepth = 60;
constexpr std::int64_t kMostBound = 2000;      // of lengths and counts
constexpr std::size_t kMostProperties = 5000;  // of one object

constexpr std::array<std::string_view, 11> kAnnotations{"title",    "description", "default",    "examples",
                                                        "$schema",  "$id",         "$comment",   "deprecated",
                                                        "readOnly", "writeOnly",   "definitions"};

class SchemaWriter {
 public:
  SchemaWriter(const ordered_json& schema, std::string prefix) : whole_(schema), prefix_(std::move(prefix)) {}

  std::string run() {
    const std::string root = rule_of(whole_, "the schema", 0);
    return prefix_ + "root ::= " + root + "\n" + rules_;
  }

  // Writes those of objects alone, as arguments of calls are; refuses a schema that allows others.
  std::string run_for_objects() {
    if (whole_ == ordered_json::object()) return prefix_ + "root ::= object\n";
    if (!of_objects(whole_, 0))
      refuse("the schema", "the arguments of a call are an object: its type must be \"object\"");
    return run();
  }

 private:
  [[noreturn]] static void refuse(const std::string& where, const std::string& what) {
    fail("{}: {}", visible(where, Lines::joined).substr(0, 200), visible(what, Lines::joined));
  }

  std::string add_rule(const std::string& right) {
    const std::string name = fmt::format("{}r{}", prefix_, next_++);
    rules_ += name + " ::= " + right + "\n";
    if (rules_.size() > (std::size_t{8} << 20)) fail("the schema is too large");
    return name;
  }

  bool of_objects(const ordered_json& schema, int depth) {
    if (depth > kMostSchemaDepth || !schema.is_object()) return false;
    const auto all = [&](const ordered_json& list) {
      return list.is_array() &&
             std::ranges::all_of(list, [&](const auto& each) { return of_objects(each, depth + 1); });
    };
    if (schema.contains("$ref")) {
      const ordered_json& target = referred(schema, "the schema");
      // Nothing more is asked of a part that was asked once: had it said no, nobody would ask.
      return !asked_.insert(&target).second || of_objects(target, depth + 1);
    }
    if (schema.contains("enum")) return std::ranges::all_of(schema["enum"], &ordered_json::is_object);
    if (schema.contains("const")) return schema["const"].is_object();
    if (schema.contains("anyOf")) return all(schema["anyOf"]);
    if (schema.contains("allOf")) return all(schema["allOf"]);
    return schema.contains("type") ? schema["type"] == "object" : schema.contains("properties");
  }

  // The name of a rule, or a group.
  std::string rule_of(const ordered_json& schema, const std::string& where, int depth) {
    if (depth > kMostSchemaDepth) refuse(where, fmt::format("nested deeper than {}", kMostSchemaDepth));
    if (schema == true) return "value";
    if (!schema.is_object()) refuse(where, "a schema is an object");
    if (schema.contains("$ref")) return rule_of_reference(schema, where, depth);
    if (schema.contains("enum")) return literals(schema, schema["enum"], where);
    if (schema.contains("const")) {
      only(schema, where, {"const", "type"});
      if (schema.contains("type") && !of_type(schema["const"], schema["type"])) {
        refuse(where + ".const", "is not of the type");
      }
      return literal(schema["const"]);
    }
    if (schema.contains("anyOf")) {
      only(schema, where, {"anyOf", "$defs"});
      return choice_of(schema["anyOf"], where + ".anyOf", depth);
    }
    if (schema.contains("allOf") && schema["allOf"].is_array() && schema["allOf"].size() == 1) {
      only(schema, where, {"allOf", "$defs"});
      return rule_of(schema["allOf"][0], where + ".allOf[0]", depth + 1);
    }
    return rule_of_type(schema, where, depth);
  }

  std::string rule_of_type(const ordered_json& schema, const std::string& where, int depth) {
    if (!schema.contains("type")) {
      if (schema.contains("properties")) return object_rule(schema, where, depth);
      if (schema.contains("items")) return array_rule(schema, where, depth);
      only(schema, where, {"$defs"});
      return "value";
    }
    const ordered_json& type = schema["type"];
    if (type.is_array()) {
      if (type.empty()) refuse(where + ".type", "is empty");
      std::string all;
      for (const ordered_json& each : type) {
        ordered_json one = ordered_json::object();
        for (const auto& [name, value] : schema.items()) {
          if (name == "type") {
            one["type"] = each;
          } else if (each.is_string() && concerns(name, each.get<std::string>())) {
            one[name] = value;
          }
        }
        all += (all.empty() ? "" : " | ") + rule_of(one, where, depth + 1);
      }
      for (const auto& [name, value] : schema.items()) {  // of none of the types: unknown
        const bool known = name == "type" || std::ranges::any_of(type, [&, &key = name](const ordered_json& each) {
                             return each.is_string() && concerns(key, each.get<std::string>());
                           });
        if (!known) refuse(where, fmt::format("\"{}\" is not supported beside these types", name));
      }
      return "( " + all + " )";
    }
    if (!type.is_string()) refuse(where + ".type", "is a name, or a list of names");
    const std::string& name = type.get_ref<const std::string&>();
    if (name == "object") return object_rule(schema, where, depth);
    if (name == "array") return array_rule(schema, where, depth);
    if (name == "string") return string_rule(schema, where);
    if (name == "integer" || name == "number") return number_rule(schema, where, name == "integer");
    if (name != "boolean" && name != "null") refuse(where + ".type", "\"" + name + "\" is no type of JSON");
    only(schema, where, {"type", "$defs"});
    return name;
  }

  // Returns whether a keyword says something of values of that type.
  static bool concerns(const std::string& keyword, const std::string& type) {
    const auto among = [&](std::initializer_list<std::string_view> names) {
      return std::ranges::find(names, std::string_view(keyword)) != names.end();
    };
    if (std::ranges::find(kAnnotations, std::string_view(keyword)) != kAnnotations.end() || keyword == "$defs") {
      return true;
    }
    if (type == "object") return among({"properties", "required", "additionalProperties"});
    if (type == "array") return among({"items", "minItems", "maxItems"});
    if (type == "string") return among({"minLength", "maxLength", "format"});
    if (type == "integer" || type == "number") {
      return among({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"});
    }
    return false;
  }

  // Refuses every keyword but these and annotations.
  static void only(const ordered_json& schema, const std::string& where,
                   std::initializer_list<std::string_view> allowed) {
    for (const auto& [name, value] : schema.items()) {
      if (std::ranges::find(allowed, std::string_view(name)) != allowed.end()) continue;
      if (std::ranges::find(kAnnotations, std::string_view(name)) != kAnnotations.end()) continue;
      refuse(where, fmt::format("\"{}\" is not supported", name));
    }
  }

  static std::string literal(const ordered_json& value) {
    return gbnf_text(value.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  }

  std::string literals(const ordered_json& schema, const ordered_json& values, const std::string& where) {
    only(schema, where, {"enum", "type", "$defs"});
    if (!values.is_array() || values.empty()) refuse(where + ".enum", "is a list of values");
    std::string all;
    for (const ordered_json& each : values) {
      if (schema.contains("type") && !of_type(each, schema["type"])) continue;  // none such is valid
      all += (all.empty() ? "" : " | ") + literal(each);
    }
    if (all.empty()) refuse(where + ".enum", "no value is of the type");
    return "( " + all + " )";
  }

  static bool of_type(const ordered_json& value, const ordered_json& type) {
    if (type.is_array()) {
      return std::ranges::any_of(type, [&](const ordered_json& each) { return of_type(value, each); });
    }
    return (type == "string" && value.is_string()) || (type == "boolean" && value.is_boolean()) ||
           (type == "null" && value.is_null()) || (type == "object" && value.is_object()) ||
           (type == "array" && value.is_array()) || (type == "number" && value.is_number()) ||
           (type == "integer" && value.is_number_integer());
  }

  std::string choice_of(const ordered_json& list, const std::string& where, int depth) {
    if (!list.is_array() || list.empty()) refuse(where, "is a list of schemas");
    std::string all;
    for (std::size_t i = 0; i < list.size(); ++i) {
      all += (i > 0 ? " | " : "") + rule_of(list[i], fmt::format("{}[{}]", where, i), depth + 1);
    }
    return "( " + all + " )";
  }

  // Returns the part of the schema that a $ref names.
  const ordered_json& referred(const ordered_json& schema, const std::string& where) const {
    if (!schema["$ref"].is_string()) refuse(where + ".$ref", "is a text");
    const std::string& path = schema["$ref"].get_ref<const std::string&>();
    if (path != "#" && !path.starts_with("#/"))
      refuse(where + ".$ref", "\"" + path + "\": only parts of the schema itself, as #/$defs/NAME");
    const ordered_json* const part = part_of_json(whole_, path);
    if (part == nullptr) refuse(where + ".$ref", "\"" + path + "\" is not in the schema");
    return *part;
  }

  std::string rule_of_reference(const ordered_json& schema, const std::string& where, int depth) {
    only(schema, where, {"$ref", "$defs"});
    const ordered_json& target = referred(schema, where);
    const std::string& path = schema["$ref"].get_ref<const std::string&>();
    const auto known = references_.find(path);
    if (known != references_.end()) return known->second;
    const std::string name = fmt::format("{}r{}", prefix_, next_++);
    references_[path] = name;
    const std::string right = rule_of(target, path, depth + 1);
    rules_ += name + " ::= " + right + "\n";
    return name;
  }

  std::string object_rule(const ordered_json& schema, const std::string& where, int depth) {
    only(schema, where, {"type", "properties", "required", "additionalProperties", "$defs"});
    const ordered_json none = ordered_json::object();
    const ordered_json& properties = schema.contains("properties") ? schema["properties"] : none;
    if (!properties.is_object()) refuse(where + ".properties", "is an object");
    if (schema.contains("additionalProperties") && !schema["additionalProperties"].is_boolean() &&
        !schema["additionalProperties"].is_object()) {
      refuse(where + ".additionalProperties", "is true, false or a schema");
    }
    if (properties.size() > kMostProperties) {
      refuse(where + ".properties", fmt::format("are {}: at most {}", properties.size(), kMostProperties));
    }
    std::vector<std::string> required;
    if (schema.contains("required")) {
      if (!schema["required"].is_array()) refuse(where + ".required", "is a list of names");
      for (const ordered_json& each : schema["required"]) {
        if (!each.is_string()) refuse(where + ".required", "is a list of names");
        required.push_back(each.get<std::string>());
        if (!properties.contains(required.back())) {
          refuse(where + ".required", "\"" + required.back() + "\" is none of the properties");
        }
      }
    }
    if (properties.empty()) {
      const ordered_json& others = schema.contains("additionalProperties") ? schema["additionalProperties"] : none;
      if (others == false) return "\"{\" ws \"}\"";
      const std::string value =
          others.is_object() ? rule_of(others, where + ".additionalProperties", depth + 1) : "value";
      const std::string pair = add_rule("string \":\" ws " + value);
      return add_rule("\"{\" ws ( " + pair + " ( \",\" ws " + pair + " )* ws )? \"}\"");
    }
    // Rules for the end, then for what begins with each property, with and without a comma.
    std::string first = "ws", more = "ws";
    std::vector<std::pair<std::string, bool>> pairs;
    for (const auto& [name, property] : properties.items()) {
      const std::string value = rule_of(property, where + ".properties." + name, depth + 1);
      pairs.emplace_back(add_rule(literal(name) + " \":\" ws " + value),
                         std::ranges::find(required, name) != required.end());
    }
    for (std::size_t i = pairs.size(); i-- > 0;) {
      const auto& [pair, needed] = pairs[i];
      const std::string next_first = pair + " " + more + (needed ? "" : " | " + first);
      const std::string next_more = "\",\" ws " + pair + " " + more + (needed ? "" : " | " + more);
      first = add_rule(next_first);
      more = add_rule(next_more);
    }
    return add_rule("\"{\" ws " + first + " \"}\"");
  }

  std::int64_t bound(const ordered_json& schema, const char* name, const std::string& where, std::int64_t otherwise) {
    if (!schema.contains(name)) return otherwise;
    const ordered_json& value = schema[name];
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostBound)) {
      refuse(where + "." + name, fmt::format("must be an integer from 0 to {}", kMostBound));
    }
    return value.get<std::int64_t>();
  }

  std::string array_rule(const ordered_json& schema, const std::string& where, int depth) {
    only(schema, where, {"type", "items", "minItems", "maxItems", "$defs"});
    const std::int64_t least = bound(schema, "minItems", where, 0), most = bound(schema, "maxItems", where, -1);
    if (most >= 0 && most < least) refuse(where, "maxItems is less than minItems");
    const std::string item = schema.contains("items") ? rule_of(schema["items"], where + ".items", depth + 1) : "value";
    if (most == 0) return "\"[\" ws \"]\"";
    const std::int64_t others = std::max<std::int64_t>(least - 1, 0);
    const std::string times = most < 0 ? fmt::format("{{{},}}", others) : fmt::format("{{{},{}}}", others, most - 1);
    const std::string items = item + " ( \",\" ws " + item + " )" + times + " ws";
    return add_rule("\"[\" ws " + (least > 0 ? items : "( " + items + " )?") + " \"]\"");
  }

  std::string string_rule(const ordered_json& schema, const std::string& where) {
    only(schema, where, {"type", "minLength", "maxLength", "format", "$defs"});
    if (schema.contains("format")) {
      const auto found =
          std::ranges::find_if(kFormats, [&](const Format& each) { return schema["format"] == each.name; });
      if (found == kFormats.end()) refuse(where + ".format", "is not supported");
      if (schema.contains("minLength") || schema.contains("maxLength")) {
        refuse(where, "a length beside a format is not supported");
      }
      return add_rule("\"\\\"\" " + std::string(found->rule) + " \"\\\"\"");
    }
    if (!schema.contains("minLength") && !schema.contains("maxLength")) return "string";
    const std::int64_t least = bound(schema, "minLength", where, 0), most = bound(schema, "maxLength", where, -1);
    if (most >= 0 && most < least) refuse(where, "maxLength is less than minLength");
    const std::string times = most < 0 ? fmt::format("{{{},}}", least) : fmt::format("{{{},{}}}", least, most);
    return add_rule("\"\\\"\" char" + times + " \"\\\"\"");
  }

  std::string number_rule(const ordered_json& schema, const std::string& where, bool integer) {
    only(schema, where, {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "$defs"});
    const auto number = [&](const char* name) -> std::optional<double> {
      if (!schema.contains(name)) return std::nullopt;
      if (!schema[name].is_number()) refuse(where + "." + name, "must be a number");
      const double value = schema[name].get<double>();
      if (!(std::abs(value) < 1e15)) refuse(where + "." + name, "must be nearer to 0 than 1e15");
      return value;
    };
    std::optional<double> least = number("minimum"), most = number("maximum");
    const std::optional<double> above = number("exclusiveMinimum"), below = number("exclusiveMaximum");
    const bool open_least = above && (!least || *above >= *least), open_most = below && (!most || *below <= *most);
    if (open_least) least = above;
    if (open_most) most = below;
    std::string right;
    if (integer) {
      IntegerBounds bounds;
      if (least) bounds.least = static_cast<std::int64_t>(open_least ? std::floor(*least) + 1 : std::ceil(*least));
      if (most) bounds.most = static_cast<std::int64_t>(open_most ? std::ceil(*most) - 1 : std::floor(*most));
      right = gbnf_of_integers(bounds);
    } else {
      right = gbnf_of_numbers(least, most, open_least, open_most);
    }
    if (right.empty()) refuse(where, "no number is within these bounds");
    return add_rule(right);
  }

  const ordered_json& whole_;
  const std::string prefix_;
  std::string rules_;
  std::map<std::string, std::string> references_;
  std::set<const ordered_json*> asked_;  // of references, whether they allow objects alone
  int next_ = 0;
};

}  // namespace

std::string gbnf_text(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += std::string("\\") + c;
    } else if (byte < 0x20 || byte == 0x7F) {
      quoted += fmt::format("\\x{:02X}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string rules_of_schema(const ordered_json& schema, const std::string& prefix) {
  return SchemaWriter(schema, prefix).run();
}

std::string rules_of_arguments(const ordered_json& schema, const std::string& prefix) {
  return SchemaWriter(schema, prefix).run_for_objects();
}

std::string json_rules() {
  return std::string(kJson);
}

std::string gbnf_of_schema(const ordered_json& schema) {
  return rules_of_schema(schema, "") + json_rules();
}

std::string gbnf_of_object() {
  return "root ::= object\n" + std::string(kJson);
}

}  // namespace hayloft::runtime::grammar
