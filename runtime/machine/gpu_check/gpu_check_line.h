#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// A line of what a run of scripts/gpu-check shows.
namespace hayloft::runtime::plan {

enum class Verdict : std::uint8_t {
  met,
  missed,
  unmeasured,
  no_bar,  // a figure to stand beside a published one
};
const char* name(Verdict verdict);

inline Verdict met_if(bool met) {
  return met ? Verdict::met : Verdict::missed;
}

struct Shown {
  std::string what;
  std::string figure;  // with what it was computed from
  std::string wanted;
  Verdict verdict = Verdict::unmeasured;
};

std::string shown_table(const std::vector<Shown>& lines);  // Markdown
nlohmann::ordered_json shown_json(const std::vector<Shown>& lines);

}  // namespace hayloft::runtime::plan
