#include "runtime/checkpoint/config.h"

#include <cmath>

#include "tests/runtime/checkpoint/config_fixture.h"

namespace hayloft::runtime {
namespace {

TEST(ConfigRope, PositionsThatALinearScalingAddsCount) {
  json file = config_of("llama");
  file["max_position_embeddings"] = 4096;
  EXPECT_EQ(read(file).max_positions, 4096);
  file["rope_scaling"] = {{"type", "linear"}, {"factor", 2.5}};
  EXPECT_EQ(read(file).max_positions, 10240);
  file["max_position_embeddings"] = 131072;  // where llama3's scaling leads to, by convention
  file["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192}};
  EXPECT_EQ(read(file).max_positions, 131072);
}

TEST(ConfigRope, LinearScalingDividesEveryFrequency) {
  const std::vector<float> plain = read(config_of("llama")).global_table.inverse_frequency;
  json file = config_of("llama");
  file["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  const std::vector<float> scaled = read(file).global_table.inverse_frequency;
  ASSERT_EQ(scaled.size(), 12u);
  for (std::size_t i = 0; i < scaled.size(); ++i) EXPECT_EQ(scaled[i], plain[i] / 4);
}

TEST(ConfigRope, Llama3ScalingStretchesLongWavelengthsOnly) {
  json file = config_of("llama");
  file["head_dim"] = 64;
  const std::vector<float> plain = read(file).global_table.inverse_frequency;
  file["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 1024}};
  const std::vector<float> scaled = read(file).global_table.inverse_frequency;
  int kept = 0, blended = 0, stretched = 0;
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    const double wavelength = 2 * M_PI / plain[i];
    if (wavelength < 1024 / 4.0) {
      EXPECT_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (wavelength > 1024 / 1.0) {
      EXPECT_EQ(scaled[i], plain[i] / 8);
      ++stretched;
    } else {
      const double smooth = (1024 / wavelength - 1) / (4 - 1);
      // a handful of f32 roundings, each of half an ulp
      EXPECT_NEAR(scaled[i], (1 - smooth) * plain[i] / 8 + smooth * plain[i], 8 * 0x1p-24 * plain[i]);
      ++blended;
    }
  }
  EXPECT_TRUE(kept && blended && stretched) << kept << " " << blended << " " << stretched;
}

TEST(ConfigRope, BothFormsOfRopeParametersMeanTheSame) {
  json older = config_of("llama");
  older["rope_theta"] = 500000.0;
  older["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  json newer = config_of("llama");
  newer["rope_parameters"] = {{"rope_theta", 500000}, {"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(read(older).global_table.inverse_frequency, read(newer).global_table.inverse_frequency);

  json none = config_of("llama");
  none["rope_theta"] = 500000.0;
  none["rope_scaling"] = nullptr;
  json standard = config_of("llama");
  standard["rope_parameters"] = {{"rope_theta", 500000.0}, {"rope_type", "default"}};
  EXPECT_EQ(read(none).global_table.inverse_frequency, read(standard).global_table.inverse_frequency);
}

TEST(ConfigRope, RefusesIncompleteRopeScaling) {
  json file = config_of("llama");
  file["rope_scaling"] = {{"rope_type", "linear"}};
  expect_refused(file, "factor");
  file["rope_scaling"] = {
      {"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 4.0}, {"high_freq_factor", 4.0}};
  expect_refused(file, "high_freq_factor");
  file["rope_scaling"].erase("low_freq_factor");
  expect_refused(file, "low_freq_factor");
}

}  // namespace
}  // namespace hayloft::runtime
