#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// What a run of scripts/gpu-check shows of the CUDA backend, held against what it must show.
namespace hayloft::runtime::plan {

enum class Verdict : std::uint8_t {
  met,
  missed,
  unmeasured,
  no_bar,  // a figure to stand beside a published one
};
const char* name(Verdict verdict);

struct Shown {
  std::string what;
  std::string figure;  // with what it was computed from
  std::string wanted;
  Verdict verdict = Verdict::unmeasured;
};

// report: a JSON object of schema hayloft.gpu-check/1, complete or not. A line for everything that is asked of a
// machine with a GPU; rates are compared with those that `hayloft link` measured in the same run. Throws Error on
// anything else.
std::vector<Shown> judge_gpu_check(const nlohmann::ordered_json& report);

std::string shown_table(const std::vector<Shown>& lines);  // Markdown
nlohmann::ordered_json shown_json(const std::vector<Shown>& lines);

}  // namespace hayloft::runtime::plan
