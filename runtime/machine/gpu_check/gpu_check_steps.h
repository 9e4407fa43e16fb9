#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "runtime/machine/gpu_check/gpu_check_line.h"

// What runtime/machine/gpu_check/gpu_check.h judges by: the steps of a report, read so that a field of another type
// than it should have counts as absent, and the lines that need no rate of the link.
namespace hayloft::runtime::plan::check {

using Json = nlohmann::ordered_json;

// 0 when there is none; 1 for true.
inline double number(const Json& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end()) return 0;
  if (found->is_boolean()) return found->get<bool>() ? 1 : 0;
  return found->is_number() ? found->get<double>() : 0;
}

inline std::string text(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// A member that is an object or a list; an empty one when there is none.
inline const Json& part(const Json& object, const char* field) {
  static const Json none = Json::object();
  const auto found = object.find(field);
  return found != object.end() && found->is_structured() ? *found : none;
}

// What a step of the run left as JSON.
struct Step {
  std::string name;
  std::string outcome;
  const Json* entry;
  const Json* data;

  bool is(const char* schema) const { return text(*data, "schema") == schema; }
  bool on_cuda() const { return text(*data, "device") == "cuda"; }
};

inline std::vector<Step> steps_of(const Json& report) {
  std::vector<Step> steps;
  for (const Json& entry : part(report, "steps")) {
    if (!entry.is_object()) continue;
    steps.push_back({text(entry, "step"), text(entry, "outcome"), &entry, &part(entry, "data")});
  }
  return steps;
}

// The test suites, which are a step of their own with and without a checker. A suite that is out of time has hung;
// under a checker, which is slow, it shows nothing.
enum class Checker : std::uint8_t { none, sanitizer };
Shown judge_tests(const std::vector<Step>& steps, Checker checker);

// The answers of one context length beside the CPU's.
Shown judge_needles(const std::vector<Step>& steps, std::int64_t tokens);
std::set<std::int64_t> needle_lengths(const std::vector<Step>& steps);

// The peak of device memory nearest to its budget, of all steps that had one; `field` says whose peak.
Shown judge_memory(const std::vector<Step>& steps, const char* what, const char* field);
// What the whole device had in use during a step, less what it had before: with what CUDA takes for itself.
Shown judge_device(const std::vector<Step>& steps);

}  // namespace hayloft::runtime::plan::check
