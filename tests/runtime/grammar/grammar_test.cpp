#include "runtime/grammar/grammar.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "offload/error.h"
#include "runtime/grammar/json_schema.h"
#include "runtime/grammar/recogniser.h"

// Grammars as llama.cpp writes them, and those of JSON schemas.
namespace hayloft::runtime::grammar {
namespace {

bool reads(Recogniser& recogniser, const std::string& text) {
  Recogniser::State state = recogniser.start();
  for (const char c : text) {
    state = recogniser.next(state, static_cast<unsigned char>(c));
    if (state == Recogniser::dead) return false;
  }
  return recogniser.may_end(state);
}

bool accepts(const std::string& grammar, const std::string& text) {
  Recogniser recogniser(parse_gbnf(grammar));
  return reads(recogniser, text);
}

bool valid(const std::string& schema, const std::string& text) {
  return accepts(gbnf_of_schema(nlohmann::ordered_json::parse(schema)), text);
}

std::string problem(const std::string& grammar) {
  try {
    parse_gbnf(grammar);
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
}

std::string schema_problem(const std::string& schema) {
  try {
    parse_gbnf(gbnf_of_schema(nlohmann::ordered_json::parse(schema)));
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Grammar, TextsClassesGroupsAndRepetitions) {
  const std::string grammar = R"(
# chess, as llama.cpp's example has it
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
)";
  EXPECT_TRUE(accepts(grammar, "1. e4 e5\n2. Nf3 Nc6\n"));
  EXPECT_TRUE(accepts(grammar, "1. e4 e5\n2. O-O-O Nxc6+\n13. a8=Q b1\n"));
  EXPECT_FALSE(accepts(grammar, "1. e4 e5\n"));
  EXPECT_FALSE(accepts(grammar, "1. e9 e5\n2. Nf3 Nc6\n"));
  EXPECT_TRUE(accepts("root ::= \"a\"{2,3}", "aaa"));
  EXPECT_FALSE(accepts("root ::= \"a\"{2,3}", "aaaa"));
  EXPECT_FALSE(accepts("root ::= \"a\"{2,3}", "a"));
  EXPECT_TRUE(accepts("root ::= \"a\"{2}", "aa"));
  EXPECT_TRUE(accepts("root ::= \"a\"{2,} | \"b\"", "aaaaaa"));
  EXPECT_TRUE(accepts("root ::= \"(\" root \")\" | \"x\"", "(((x)))"));
  EXPECT_FALSE(accepts("root ::= \"(\" root \")\" | \"x\"", "(((x))"));
  EXPECT_TRUE(accepts("root ::= \"a\" |\n  \"b\"\n", "b"));
}

TEST(Grammar, CharactersAreUtf8) {
  EXPECT_TRUE(accepts("root ::= [^a-z]+", "ÄÖ€𝄞 1"));
  EXPECT_FALSE(accepts("root ::= [^a-z]+", "Äa"));
  EXPECT_FALSE(accepts("root ::= [^a-z]+", "\xC3"));
  EXPECT_FALSE(accepts("root ::= .", "\xED\xA0\x80"));  // half of a character
  EXPECT_FALSE(accepts("root ::= .", "\xC0\x80"));
  EXPECT_TRUE(accepts("root ::= [а-я]{3} \"é\" \"\\u00e9\"", "абвéé"));
  EXPECT_FALSE(accepts("root ::= [а-я]", "Я"));
  EXPECT_TRUE(accepts("root ::= [\\U0001F600-\\U0001F64F]", "😀"));
  EXPECT_FALSE(accepts("root ::= [\\U0001F600-\\U0001F64F]", "🚀"));
  EXPECT_TRUE(accepts("root ::= [^\\uD800-\\uDFFF]", "🚀"));
}

TEST(Grammar, WhatIsWrongIsSaid) {
  EXPECT_NE(problem("start ::= \"a\"").find("no rule \"root\""), std::string::npos);
  EXPECT_NE(problem("root ::= other").find("other is not defined"), std::string::npos);
  EXPECT_NE(problem("root ::= \"a\"\nroot ::= \"b\"").find("line 2"), std::string::npos);
  EXPECT_NE(problem("root ::= root \"a\" | \"b\"").find("calls itself before it reads"), std::string::npos);
  EXPECT_NE(problem("root ::= (\"a\"*)*").find("repeats what may be empty"), std::string::npos);
  EXPECT_NE(problem("root ::= \"x\" | a\na ::= \"(\" a \")\"").find("no text ends the rule a"), std::string::npos);
  EXPECT_NE(problem("root ::= \"a").find("ends inside"), std::string::npos);
  EXPECT_NE(problem("root ::= [").find("ends inside"), std::string::npos);
  EXPECT_NE(problem("root ::= (\"a\"").find("\")\" is wanted"), std::string::npos);
  EXPECT_NE(problem("root ::= \"a\"{9999999}").find("repeated more than"), std::string::npos);
  EXPECT_NE(problem("root = \"a\"").find("::="), std::string::npos);
  EXPECT_NE(problem("root ::= \"\\uD83D\\uDE00\"").find("a lone surrogate is no character"), std::string::npos);
  EXPECT_NE(problem("root ::= [\\uD800]").find("a lone surrogate is no character"), std::string::npos);
  EXPECT_NE(problem("root ::= \"\xED\xA0\x80\"").find("is not UTF-8"), std::string::npos);
  EXPECT_NE(problem(""), "");
  EXPECT_NE(problem("root ::= \"a\" )"), "");
}

TEST(JsonSchema, ObjectsHaveTheirPropertiesInOrder) {
  const std::string schema = R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"},
      "c": {"type": ["boolean", "null"]}}, "required": ["b"], "additionalProperties": false})";
  EXPECT_TRUE(valid(schema, R"({"a":1,"b":"x","c":null})"));
  EXPECT_TRUE(valid(schema, R"({ "b": "x" })"));
  EXPECT_TRUE(valid(schema, "{\n  \"b\": \"x\",\n  \"c\": true\n}"));
  EXPECT_FALSE(valid(schema, R"({"a":1})"));
  EXPECT_FALSE(valid(schema, R"({"b":"x","a":1})"));
  EXPECT_FALSE(valid(schema, R"({"b":"x","d":1})"));
  EXPECT_FALSE(valid(schema, R"({"b":"x",})"));
  EXPECT_FALSE(valid(schema, R"({"a":1.5,"b":"x"})"));
  EXPECT_TRUE(valid(R"({"type": "object", "additionalProperties": {"type": "integer"}})", R"({"x": 1, "y": 2})"));
  EXPECT_FALSE(valid(R"({"type": "object", "additionalProperties": {"type": "integer"}})", R"({"x": "a"})"));
  EXPECT_TRUE(valid("{}", R"({"x": [1, {"y": null}], "z": "\u00e9\n"})"));
}

TEST(JsonSchema, ListsChoicesAndReferences) {
  const std::string list = R"({"type": "array", "items": {"enum": ["a", 1, null]}, "minItems": 1, "maxItems": 3})";
  EXPECT_TRUE(valid(list, R"(["a", 1,null])"));
  EXPECT_FALSE(valid(list, "[]"));
  EXPECT_FALSE(valid(list, "[1,1,1,1]"));
  const std::string tree = R"({"$defs": {"node": {"type": "object", "properties": {"value": {"type": "number"},
      "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"],
      "additionalProperties": false}}, "$ref": "#/$defs/node"})";
  EXPECT_TRUE(valid(tree, R"({"value": 1.5, "next": {"value": -2e3, "next": null}})"));
  EXPECT_FALSE(valid(tree, R"({"value": 1.5, "next": 5})"));
  EXPECT_TRUE(valid(R"({"const": "a\"b"})", R"("a\"b")"));
}

// A reference is a part of a URI: bytes of a name may be written as %20, "/" and "~" are ~1 and ~0.
TEST(JsonSchema, NamesInReferencesMayBeEscaped) {
  for (const auto& [name, written] : std::vector<std::pair<std::string, std::string>>{{"a b", "a%20b"},
                                                                                      {"a b", "a b"},
                                                                                      {"Box[int]", "Box%5Bint%5d"},
                                                                                      {"a/b~c", "a~1b%7E0c"},
                                                                                      {"é", "%C3%A9"},
                                                                                      {"100%", "100%"},
                                                                                      {"100%", "100%25"},
                                                                                      {"%zz", "%zz"}}) {
    const nlohmann::ordered_json schema = {{"$ref", "#/$defs/" + written}, {"$defs", {{name, {{"type", "null"}}}}}};
    EXPECT_TRUE(valid(schema.dump(), "null")) << written;
  }
}

// Each part names the next one twice: asked anew each time, the last would be asked two to the 28th time.
TEST(JsonSchema, ArgumentsAreAskedOnceOfEachPartWhetherTheyAreObjects) {
  nlohmann::ordered_json schema = {{"$ref", "#/$defs/0"}};
  for (int part = 0; part < 28; ++part) {
    const nlohmann::ordered_json next = {{"$ref", "#/$defs/" + std::to_string(part + 1)}};
    schema["$defs"][std::to_string(part)]["anyOf"] = {next, next};
  }
  schema["$defs"]["28"] = {{"type", "object"}, {"properties", nlohmann::ordered_json::object()}};
  EXPECT_NE(rules_of_arguments(schema, ""), "");
  schema["$defs"]["28"] = {{"type", "string"}};
  EXPECT_THROW(rules_of_arguments(schema, ""), Error);
  EXPECT_THROW(parse_gbnf(rules_of_arguments({{"$ref", "#"}}, "")), Error) << "it never says what it is";
}

TEST(JsonSchema, BoundsOfNumbersAndLengths) {
  for (const auto& [least, most] :
       std::vector<std::pair<int, int>>{{0, 0}, {3, 17}, {-12, 105}, {-120, -7}, {99, 1001}}) {
    const std::string schema =
        R"({"type": "integer", "minimum": )" + std::to_string(least) + R"(, "maximum": )" + std::to_string(most) + "}";
    Recogniser recogniser(parse_gbnf(gbnf_of_schema(nlohmann::ordered_json::parse(schema))));
    for (int value = -1100; value <= 1100; ++value) {
      Recogniser::State state = recogniser.start();
      for (const char c : std::to_string(value)) {
        if (state != Recogniser::dead) state = recogniser.next(state, static_cast<unsigned char>(c));
      }
      const bool accepted = state != Recogniser::dead && recogniser.may_end(state);
      EXPECT_EQ(accepted, value >= least && value <= most) << value << " in " << schema;
    }
  }
  EXPECT_TRUE(valid(R"({"type": "integer", "minimum": 5})", "123456"));
  EXPECT_FALSE(valid(R"({"type": "integer", "minimum": 5})", "4"));
  EXPECT_TRUE(valid(R"({"type": "integer", "exclusiveMaximum": 5})", "-77"));
  EXPECT_FALSE(valid(R"({"type": "integer", "exclusiveMaximum": 5})", "5"));
  const std::string share = R"({"type": "number", "minimum": 0, "exclusiveMaximum": 1})";
  EXPECT_TRUE(valid(share, "0.25"));
  EXPECT_FALSE(valid(share, "1"));
  EXPECT_FALSE(valid(share, "1.5"));
  EXPECT_TRUE(valid(R"({"type": "number", "minimum": -1, "maximum": 1})", "-0.5"));
  EXPECT_FALSE(valid(R"({"type": "number", "minimum": -1, "maximum": 1})", "-1.5"));
  EXPECT_TRUE(valid(R"({"type": "string", "minLength": 2, "maxLength": 3})", R"("ä\n")"));
  EXPECT_FALSE(valid(R"({"type": "string", "minLength": 2, "maxLength": 3})", R"("abcd")"));
  EXPECT_TRUE(valid(R"({"type": "string", "format": "date"})", R"("2026-11-25")"));
  EXPECT_FALSE(valid(R"({"type": "string", "format": "date"})", R"("2026-13-25")"));
}

// The bounds let all numbers through that are within, as they are compared as doubles, and no other.
TEST(JsonSchema, NumbersBetweenBoundsThatAreNoIntegers) {
  const double bounds[] = {-12.75, -1,  -0.5, -0.001, 0,   0.0005, 0.0009, 0.05, 0.1,
                           0.5,    0.9, 1,    1.5,    2.5, 9.99,   10,     37.4};
  const char* texts[] = {"0",         "0.0007", "0.00049",  "0.05",     "0.049999", "0.1",   "0.3", "0.5",  "0.500001",
                         "0.899999",  "0.9",    "1",        "1.000001", "1.25",     "1.49",  "1.5", "1.51", "2",
                         "2.25",      "2.5",    "2.500001", "9.989",    "9.99",     "9.995", "10",  "12.7", "12.75",
                         "12.750001", "36.6",   "37.399",   "37.4",     "37.41",    "100"};
  for (const double least : bounds) {
    for (const double most : bounds) {
      for (int open = 0; open < 4 && least <= most; ++open) {
        const bool open_least = open % 2 > 0, open_most = open > 1;
        if (least == most && open > 0) continue;
        const nlohmann::ordered_json schema{{"type", "number"},
                                            {open_least ? "exclusiveMinimum" : "minimum", least},
                                            {open_most ? "exclusiveMaximum" : "maximum", most}};
        Recogniser recogniser(parse_gbnf(gbnf_of_schema(schema)));
        for (const char* text : texts) {
          for (const std::string sign : {"", "-"}) {
            const double value = std::stod(sign + text);
            if (value == 0 && !sign.empty()) continue;
            const bool within =
                (open_least ? value > least : value >= least) && (open_most ? value < most : value <= most);
            EXPECT_EQ(reads(recogniser, sign + text), within) << sign << text << " by " << schema;
          }
        }
      }
    }
  }
  EXPECT_TRUE(valid(R"({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-9})", "0.0000000005"));
  EXPECT_FALSE(valid(R"({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-9})", "0.0000000015"));
  EXPECT_TRUE(valid(R"({"type": "number", "minimum": 1.5})", "12345678.25"));
}

TEST(Grammar, OfEitherIsThatOfTheTextsOfBoth) {
  Recogniser both(either(parse_gbnf("root ::= \"a\" x\nx ::= [0-9]+"), parse_gbnf("root ::= x\nx ::= \"ab\" | \"é\"")));
  for (const char* text : {"a1", "a123", "ab", "é"}) EXPECT_TRUE(reads(both, text)) << text;
  for (const char* text : {"a", "a1b", "ab1", "é1", ""}) EXPECT_FALSE(reads(both, text)) << text;
}

TEST(JsonSchema, WhatIsNotSupportedIsRefusedByName) {
  for (const auto& [schema, name] : std::vector<std::pair<std::string, std::string>>{
           {R"({"type": "string", "pattern": "a+"})", "pattern"},
           {R"({"type": "integer", "multipleOf": 3})", "multipleOf"},
           {R"({"type": "array", "uniqueItems": true})", "uniqueItems"},
           {R"({"oneOf": [{"type": "null"}]})", "oneOf"},
           {R"({"type": "object", "patternProperties": {}})", "patternProperties"},
           {R"({"not": {}})", "not"},
           {R"({"type": "object", "properties": {"a": {"if": {}}}})", "the schema.properties.a"},
           {R"({"$ref": "http://example.com/x"})", "$ref"},
           {R"({"$ref": "#/$defs/none"})", "not in the schema"},
           {R"({"type": "string", "format": "regex"})", "format"},
           {R"({"type": "integer", "minimum": 3, "maximum": 2})", "no number"},
           {R"({"type": "whole"})", "whole"},
           {R"({"type": "object", "additionalProperties": 5})", "additionalProperties: is true, false or a schema"},
           {R"({"type": "object", "properties": {"a": {}}, "additionalProperties": "no"})",
            "is true, false or a schema"},
           {R"({"anyOf": [{"$ref": "#"}]})", "calls itself"},
           {R"({"const": 5, "type": "string"})", "the schema.const: is not of the type"},
           {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "no text ends the rule"},
           {R"(5)", "a schema is an object"}}) {
    EXPECT_NE(schema_problem(schema).find(name), std::string::npos) << schema << ": " << schema_problem(schema);
  }
}

}  // namespace
}  // namespace hayloft::runtime::grammar
