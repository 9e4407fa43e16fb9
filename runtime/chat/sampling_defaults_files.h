#pragma once

#include <filesystem>

#include "runtime/chat/sampling_defaults.h"

// The two places that sampling_defaults() reads.
namespace hayloft::runtime {

SamplingDefaults sampling_defaults_of_folder(const std::filesystem::path& directory);
SamplingDefaults sampling_defaults_of_gguf(const std::filesystem::path& file);

constexpr std::int64_t most_sampled_candidates = 1 << 30;

// A field and the numbers that it may have.
struct SamplingRange {
  const char* name;
  double least;
  double most;

  bool holds(double value) const { return value >= least && value <= most; }
  std::string text() const;  // for a message
};
inline constexpr SamplingRange temperature_range = {"temperature", 0, 1e9};
inline constexpr SamplingRange top_p_range = {"top_p", 1e-9, 1};
inline constexpr SamplingRange min_p_range = {"min_p", 0, 1};
inline constexpr SamplingRange repetition_range = {"repetition_penalty", 1e-9, 1e9};

}  // namespace hayloft::runtime
