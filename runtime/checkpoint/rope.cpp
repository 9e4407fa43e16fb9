#include "runtime/checkpoint/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

namespace hayloft::runtime {
namespace {

// base ^ (2 i / dimensions). The power is taken in f64 of operands in f32, then rounded: what an f32 power gives.
std::vector<float> powers(double base, int dimensions) {
  std::vector<float> out(static_cast<std::size_t>(dimensions / 2));
  for (int i = 0; i < dimensions / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dimensions);
    out[static_cast<std::size_t>(i)] = static_cast<float>(std::pow(double{static_cast<float>(base)}, double{exponent}));
  }
  return out;
}

std::vector<float> inverse(std::vector<float> powers) {
  for (float& power : powers) power = 1.0f / power;
  return powers;
}

// Long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
void scale_llama3(const RopeParameters& rope, std::span<float> frequencies) {
  const auto factor = static_cast<float>(rope.factor);
  const auto low = static_cast<float>(rope.low_frequency);
  const auto high = static_cast<float>(rope.high_frequency);
  const auto trained = static_cast<float>(rope.original_positions);
  for (float& frequency : frequencies) {
    const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
    if (wavelength > trained / low) {
      frequency /= factor;
    } else if (!(wavelength < trained / high)) {
      const float smooth = (trained / wavelength - low) / (high - low);
      frequency = (1 - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

// The component that turns `rotations` times within the positions of training.
double correction_dimension(const RopeParameters& rope, double rotations) {
  return rope.dimensions * std::log(static_cast<double>(rope.original_positions) / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.base));
}

std::vector<float> yarn(const RopeParameters& rope) {
  double low = correction_dimension(rope, rope.beta_fast);
  double high = correction_dimension(rope, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.dimensions - 1));
  if (low == high) high += 0.001;
  std::vector<float> frequencies = powers(rope.base, rope.dimensions);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float kept =
        1 - std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float extrapolated = 1.0f / frequencies[i];
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * frequencies[i]);
    frequencies[i] = interpolated * (1 - kept) + extrapolated * kept;
  }
  return frequencies;
}

double yarn_magnitude(const RopeParameters& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  const auto magnitude = [&](double scale) { return rope.factor <= 1 ? 1 : 0.1 * scale * std::log(rope.factor) + 1; };
  return rope.mscale != 0 && rope.mscale_all != 0 ? magnitude(rope.mscale) / magnitude(rope.mscale_all) : magnitude(1);
}

std::vector<float> longrope(const RopeParameters& rope, std::int64_t positions) {
  const std::vector<float>& factors = positions > rope.original_positions ? rope.long_factors : rope.short_factors;
  std::vector<float> frequencies = powers(rope.base, rope.dimensions);
  for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = 1.0f / (factors.at(i) * frequencies[i]);
  return frequencies;
}

double longrope_magnitude(const RopeParameters& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.factor <= 1) return 1;
  return std::sqrt(1 + std::log(rope.factor) / std::log(static_cast<double>(rope.original_positions)));
}

// The base that `positions` ask for.
double dynamic_base(const RopeParameters& rope, std::int64_t positions) {
  const double length = static_cast<double>(std::max(positions, rope.original_positions));
  const double stretch = rope.factor * length / static_cast<double>(rope.original_positions) - (rope.factor - 1);
  return rope.base * std::pow(stretch, static_cast<double>(rope.dimensions) / (rope.dimensions - 2));
}

}  // namespace

RopeTable rope_table(const RopeParameters& rope, std::int64_t positions) {
  RopeTable table;
  std::vector<float>& frequencies = table.inverse_frequency;
  switch (rope.scaling) {
    case RopeScaling::yarn:
      frequencies = yarn(rope);
      table.magnitude = static_cast<float>(yarn_magnitude(rope));
      break;
    case RopeScaling::longrope:
      frequencies = longrope(rope, positions);
      table.magnitude = static_cast<float>(longrope_magnitude(rope));
      break;
    case RopeScaling::dynamic:
      frequencies = inverse(powers(dynamic_base(rope, positions), rope.dimensions));
      break;
    case RopeScaling::linear:
      frequencies = inverse(powers(rope.base, rope.dimensions));
      for (float& frequency : frequencies) frequency /= static_cast<float>(rope.factor);
      break;
    case RopeScaling::llama3:
      frequencies = inverse(powers(rope.base, rope.dimensions));
      scale_llama3(rope, frequencies);
      break;
    case RopeScaling::none:
      frequencies = inverse(powers(rope.base, rope.dimensions));
      break;
  }
  if (rope.magnitude != 1) table.magnitude = static_cast<float>(table.magnitude * rope.magnitude);
  for (std::size_t i = 0; i < rope.divisors.size(); ++i) frequencies.at(i) /= rope.divisors[i];
  std::fill(frequencies.end() - rope.still, frequencies.end(), 0.0f);
  return table;
}

std::string RopeOverrides::text() const {
  std::string text;
  if (scaling) {
    text += fmt::format(" --rope-scaling {}", *scaling == RopeScaling::none     ? "none"
                                              : *scaling == RopeScaling::linear ? "linear"
                                                                                : "yarn");
  }
  if (factor > 0) text += fmt::format(" --rope-scale {}", factor);
  if (original_positions > 0) text += fmt::format(" --yarn-orig-ctx {}", original_positions);
  if (base > 0) text += fmt::format(" --rope-freq-base {}", base);
  return text.empty() ? text : text.substr(1);
}

}  // namespace hayloft::runtime
