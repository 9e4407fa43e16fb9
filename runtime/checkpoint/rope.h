#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hayloft::runtime {

// Says how the frequencies of a rotary position embedding are stretched for contexts longer than a model was trained
// on.
enum class RopeScaling : std::uint8_t {
  none,
  linear,    // every frequency divided by a factor
  dynamic,   // a larger base, by the length of the context (NTK-aware)
  yarn,      // long wavelengths divided, short ones kept (arXiv 2309.00071)
  longrope,  // a divisor for each frequency, one list for short and one for long contexts (arXiv 2402.13753)
  llama3     // as yarn, by wavelengths and without its magnitude
};

// A rotary position embedding as a checkpoint describes it.
struct RopeParameters {
  double base = 1e4;   // theta
  int dimensions = 0;  // of a head that are rotated, the first ones; even
  int still = 0;       // of their pairs, the last ones, which do not turn (gemma4)
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  std::int64_t original_positions = 0;  // of training: llama3, yarn, longrope; dynamic: what the factor is applied from
  std::optional<double> attention_factor = {};               // yarn, longrope: the magnitude, where the file says it
  double beta_fast = 32, beta_slow = 1;                      // yarn
  double mscale = 0, mscale_all = 0;                         // yarn
  bool truncate = true;                                      // yarn: the range of the ramp in whole components
  double low_frequency = 1, high_frequency = 4;              // llama3
  std::vector<float> short_factors = {}, long_factors = {};  // longrope, [dimensions / 2]
  std::vector<float> divisors = {};                          // of each frequency, after all scaling; empty: none
  double magnitude = 1;                                      // of any scaling, besides what that says of it (GGUF)
};

// The factors that tokens are rotated by: component i of `dimensions` / 2 by position * inverse_frequency[i], and
// multiplied by magnitude.
struct RopeTable {
  std::vector<float> inverse_frequency;
  float magnitude = 1;
};

// positions: how long the context will be, which `dynamic` and `longrope` depend on. The equations are those of Hugging
// Face transformers, in f32 where it computes so, because at a million tokens the last bit of a frequency shows.
RopeTable rope_table(const RopeParameters& parameters, std::int64_t positions);

// The values that a user gives in place of the checkpoint, in llama.cpp's terms; it applies to global layers.
struct RopeOverrides {
  std::optional<RopeScaling> scaling;   // none, linear or yarn
  double factor = 0;                    // 0: the checkpoint's
  std::int64_t original_positions = 0;  // 0: the checkpoint's, or else what the model was made for
  double base = 0;                      // 0: the checkpoint's

  bool any() const { return scaling || factor > 0 || original_positions > 0 || base > 0; }
  std::string text() const;  // as flags, for messages and to tell contexts apart; empty for none
};

}  // namespace hayloft::runtime
