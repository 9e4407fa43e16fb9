#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "offload/error.h"
#include "runtime/chat/jinja/template.h"
#include "tests/support/refusal.h"

namespace hayloft::runtime::jinja {
namespace {

using nlohmann::ordered_json;
using test::refuses;

std::string render(const std::string& source, const ordered_json& variables = ordered_json::object(),
                   const Limits& limits = {}) {
  return Template(source, "chat.jinja").render(variables, 0, limits);
}

// In a sixty-fourth of the steps, so that endless ones take no time.
::testing::AssertionResult refused(const std::string& source, std::initializer_list<std::string> parts) {
  Limits limits;
  limits.steps /= 64;
  return refuses([&] { render(source, {{"list", {1, 2}}, {"word", "hay"}}, limits); }, parts);
}

TEST(Jinja, NamesTheTemplateAndTheLineOfWhatItRefuses) {
  EXPECT_TRUE(refused("a\n\n{{ word|nothing }}", {"chat.jinja: line 3", "no filter 'nothing'"}));
  EXPECT_TRUE(refused("a\n{% if word is nothing %}{% endif %}", {"line 2", "no test 'nothing'"}));
  EXPECT_TRUE(refused("\n{{ other.part }}", {"line 2", "'other' is undefined"}));
  EXPECT_TRUE(refused("\n{{ word.part.part }}", {"line 2", "'part' is undefined"}));
  EXPECT_TRUE(refused("\n{{ word.nothing() }}", {"line 2", "'nothing' is undefined"}));
  EXPECT_TRUE(refused("\n{{ list.append(3) }}", {"line 2", "'append' is undefined"}));
  EXPECT_TRUE(refused("\n\n{{ 1 +\n'a' }}", {"line 3", "'+'", "int", "str"}));
  EXPECT_TRUE(refused("\n{{ raise_exception('roles must\nalternate') }}", {"line 2", "roles must alternate"}));
}

TEST(Jinja, RefusesStatementsThatChatTemplatesDoNotUse) {
  EXPECT_TRUE(refused("\n{% include 'x' %}", {"chat.jinja: line 2", "{% include %} is not supported"}));
  EXPECT_TRUE(refused("{% import 'x' as y %}", {"{% import %} is not supported"}));
  EXPECT_TRUE(refused("{% do list.append(1) %}", {"{% do %} is not supported"}));
  EXPECT_TRUE(refused("{% for i in list recursive %}{% endfor %}", {"recursive"}));
  EXPECT_TRUE(refused("{{ range(*list) }}", {"'*'", "not supported"}));
  EXPECT_TRUE(refused("\n{% if word %}\n\n", {"line 2", "{% if %} has no {% endif %}"}));
  EXPECT_TRUE(refused("{% break %}", {"outside of any loop"}));
}

TEST(Jinja, WritesTheTimeItIsGiven) {
  EXPECT_EQ(Template("{{ strftime_now('%Y') }}", "t").render(ordered_json::object(), 1700000000), "2023");
}

TEST(Jinja, KeepsTheOrderOfObjects) {
  EXPECT_EQ(render("{{ o|tojson }}{% for k in o %}{{ k }}{% endfor %}", {{"o", {{"z", 1}, {"a", 2}}}}),
            R"({"z": 1, "a": 2}za)");
}

TEST(Jinja, RepairsTextThatIsNotUtf8) {
  EXPECT_EQ(render("\xFF{{ a|length }}{{ a }}", {{"a", "\xC3"}}), "\uFFFD1\uFFFD");
}

// ---- templates that mean harm

TEST(JinjaLimits, StopALoopThatNeverEnds) {
  const std::string loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  EXPECT_TRUE(refused(loop, {"chat.jinja: line 1", "steps"}));
  EXPECT_TRUE(refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", {"deep in one another"}));
  Limits few;
  few.steps = 100;
  EXPECT_TRUE(
      refuses([&] { render("{% for a in range(50) %}{{ a }}{% endfor %}", ordered_json::object(), few); }, {"steps"}));
}

TEST(JinjaLimits, StopTextThatGrowsWithoutEnd) {
  const std::string twice = "{% set ns = namespace(t='0123456789') %}{% for a in range(99) %}";
  EXPECT_TRUE(refused(twice + "{% set ns.t = ns.t ~ ns.t %}{% endfor %}", {"steps"}));
  EXPECT_TRUE(refused(twice + "{% set ns.t = ns.t + ns.t %}{% endfor %}", {"steps"}));
  EXPECT_TRUE(refused(twice + "{% set ns.t = ns.t|replace('0', ns.t) %}{% endfor %}", {"steps"}));
  EXPECT_TRUE(refused(twice + "{% set ns.t = [ns.t, ns.t]|join(ns.t) %}{% endfor %}", {"chat.jinja: line 1"}));
  EXPECT_TRUE(refused("{{ 'a' * 9999999999 }}", {"bytes"}));
  EXPECT_TRUE(refused("{{ 'a'.ljust(99999999999) }}", {"bytes"}));
  EXPECT_TRUE(refused("{{ 'a'|indent(999999) }}", {"1024"}));
  EXPECT_TRUE(refused("{{ range(9999999) }}", {"100000"}));
  Limits small;
  small.output_bytes = 10;
  EXPECT_TRUE(refuses([&] { render("{{ 'a' * 11 }}", ordered_json::object(), small); }, {"more than 10 bytes"}));
}

// Each goes over a text or a list of twenty thousand in every turn of a loop; none may do so for a step or two.
TEST(JinjaLimits, CountWhatFiltersAndMethodsGoOver) {
  ordered_json variables = {{"a", std::string(20'000, 'a')}, {"many", ordered_json::array()}};
  variables["half"] = std::string(10'000, 'a') + "b";
  for (int i = 0; i < 20'000; ++i) variables["many"].push_back(i);
  for (int i = 0; i < 2'000; ++i) variables["dict"]["key" + std::to_string(i)] = i;
  for (int i = 2'000; i-- > 0;) variables["other"]["key" + std::to_string(i)] = i;
  Limits limits;
  limits.steps = 1 << 18;
  const std::string expressions =
      "a|length; half in a; a.find(half); a.rfind(half); a.count(half); a.split(half); a.rsplit(half); "
      "a.partition(half); a|replace(half, 'b'); a.replace(half, 'b'); a.strip(a); a|trim(a); a.isalpha(); "
      "a is upper; a is lt a; a|upper; a|title; a.splitlines(); a|indent; a|center(20001); a|int; a|float; "
      "a % (); a.format(); a|wordcount; a|first; a|list; a|reverse; a[1:]; a[::2]; a[5]; "
      "many[1:]; many + many; many|tojson; many|string; many|sort; "
      "many|unique|list; many|batch(3)|list; [1]|batch(20000, 'x')|list; many|sum; many|join(','); "
      "many == many; dict == other; dict.key1999; dict['key1999']; a in dict; dict[a]; dict|items|list; "
      "dict.values(); dict|dictsort; dict(dict); range(99999); strftime_now(a); '' ~ a; a * 2";
  std::istringstream stream(expressions);
  for (std::string expression; std::getline(stream, expression, ';');) {
    const std::string source = "{% for i in range(20000) %}{% set x = " + expression + " %}{% endfor %}";
    EXPECT_TRUE(refuses([&] { render(source, variables, limits); }, {"line 1"})) << expression;
  }
  const char* const data = "{% for i in range(20000) %}{% set x %}{{ a }}{% endset %}{% endfor %}";
  EXPECT_TRUE(refuses([&] { render(data, variables, limits); }, {"steps"}));
}

// A long conversation may be gone over as often as a short one.
TEST(JinjaLimits, GrowWithWhatIsGiven) {
  Limits limits;
  limits.steps = 1 << 12;
  EXPECT_EQ(render("{{ a|length }}{{ a.split('b')|length }}{{ (a|trim)|length }}", {{"a", std::string(1 << 20, 'a')}},
                   limits),
            "104857611048576");
}

TEST(JinjaLimits, KeepMessagesToALine) {
  try {
    render("{{ raise_exception('\x1B[2J' ~ 'word ' * 99999) }}");
    FAIL();
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 1100U);
    EXPECT_EQ(std::string(error.what()).find('\x1B'), std::string::npos);
    EXPECT_TRUE(std::string(error.what()).ends_with("..."));
  }
}

TEST(JinjaLimits, StopValuesThatHoldOneAnother) {
  EXPECT_TRUE(
      refused("{% set ns = namespace(l=[1]) %}{% for a in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}",
              {"holds more than"}));
  EXPECT_TRUE(
      refused("{% set ns = namespace(l=1) %}{% for a in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}", {"deep"}));
  const std::string loops =
      "{% set ns = namespace(l=1) %}{% for a in range(999) %}{% for b in [ns.l] %}"
      "{% set ns.l = loop %}{% endfor %}{% endfor %}";
  EXPECT_TRUE(refused(loops, {"deep"}));
  // A chain of namespaces and a circle of them end with the template.
  EXPECT_EQ(render("{% set ns = namespace() %}{% for a in range(99999) %}{% set ns.l = namespace(l=ns.l) %}{% endfor %}"
                   "{% set ns.me = ns %}x"),
            "x");
}

TEST(JinjaLimits, StopSourceThatNestsWithoutEnd) {
  const auto many = [](const std::string& text) {
    std::string out;
    for (int i = 0; i < 100'000; ++i) out += text;
    return out;
  };
  EXPECT_TRUE(refused("{{ " + many("(") + "1" + many(")") + " }}", {"line 1", "too deep"}));
  EXPECT_TRUE(refused("{{ " + many("[") + many("]") + " }}", {"too deep"}));
  EXPECT_TRUE(refused("{{ " + many("not ") + "1 }}", {"too deep"}));
  EXPECT_TRUE(refused("{{ " + many("-") + "1 }}", {"too deep"}));
  EXPECT_TRUE(refused("{{ 1" + many(" + 1") + " }}", {"too many parts"}));
  EXPECT_TRUE(refused("{{ a" + many(".a") + " }}", {"too many parts"}));
  EXPECT_TRUE(refused("{{ 1 if 1 else " + many("1 if 1 else ") + "1 }}", {"too deep"}));
  EXPECT_TRUE(refused(many("{% if 1 %}") + many("{% endif %}"), {"too deep"}));
  EXPECT_TRUE(refused("{% set " + many("(") + many(")") + " = 1 %}", {"too deep"}));
  ordered_json nested = 1;
  for (int i = 0; i < 1000; ++i) nested = ordered_json::array({nested});
  EXPECT_TRUE(refuses([&] { render("{{ a }}", {{"a", nested}}); }, {"deep"}));
}

TEST(Jinja, RendersTheSameInEveryThread) {
  const Template parsed("{% for i in range(200) %}{{ i ~ word }}{% endfor %}", "t");
  const ordered_json variables = {{"word", "hay"}};
  const std::string expected = parsed.render(variables);
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = parsed.render(variables); });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace hayloft::runtime::jinja
