#include "runtime/plan/gpu_cards.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "offload/error.h"

namespace hayloft::runtime::plan {
namespace {

// GB/s of PCIe's lanes in one direction, by generation, after its encoding: 8, 16 and 32 GT/s, 128 of 130 bits.
constexpr double lane_rate(int generation) {
  return generation == 3 ? 0.985 : generation == 4 ? 1.969 : 3.938;
}
constexpr double kLinkShare = 0.8;  // of its lanes that a link is taken to carry as data

struct NamedCard {
  const char* name;
  int memory_gib;
  int multiprocessors;
  double gigahertz;
  double memory_rate;
  int generation;  // of PCIe
  int lanes;
};
// Published by NVIDIA: the pages of each GeForce card, and the data sheets of T4, L4, A10, RTX A2000 and A4000; of
// tensor cores, the white papers of each architecture: a multiprocessor multiplies f16 with sums in f32 at 512
// operations a cycle on GeForce cards, at 1,024 on the others.
constexpr NamedCard cards[] = {
    {"rtx3060", 12, 28, 1.78, 360, 4, 16},   {"rtx3090", 24, 82, 1.70, 936, 4, 16},
    {"rtx4060", 8, 24, 2.46, 272, 4, 8},     {"rtx4060ti-16gb", 16, 34, 2.54, 288, 4, 8},
    {"rtx4070", 12, 46, 2.48, 504, 4, 16},   {"rtx4070tisuper", 16, 66, 2.61, 672, 4, 16},
    {"rtx4080", 16, 76, 2.51, 717, 4, 16},   {"rtx4090", 24, 128, 2.52, 1008, 4, 16},
    {"rtx5060ti", 16, 36, 2.57, 448, 5, 8},  {"rtx5070", 12, 48, 2.51, 672, 5, 16},
    {"rtx5070ti", 16, 70, 2.45, 896, 5, 16}, {"rtx5080", 16, 84, 2.62, 960, 5, 16},
    {"rtx5090", 32, 170, 2.41, 1792, 5, 16}, {"rtxa2000", 12, 26, 1.20, 288, 4, 16},
    {"rtxa4000", 16, 48, 1.56, 448, 4, 16},  {"t4", 16, 40, 1.59, 320, 3, 16},
    {"l4", 24, 58, 2.04, 300, 4, 16},        {"a10", 24, 72, 1.70, 600, 4, 16},
};

bool is_geforce(const NamedCard& card) {
  const std::string_view name = card.name;
  return name.starts_with("rtx") && !name.starts_with("rtxa");
}

std::string names_of_cards() {
  std::string names;
  for (const NamedCard& card : cards) names += names.empty() ? card.name : std::string(", ") + card.name;
  return names;
}

}  // namespace

GpuCard parse_card(const std::string& text) {
  std::string name;
  for (const char c : text) {
    if (c != ' ') name += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  const auto* const known = std::find_if(std::begin(cards), std::end(cards),
                                         [&](const NamedCard& card) { return std::string_view(card.name) == name; });
  if (known != std::end(cards)) {
    return {known->multiprocessors,
            known->gigahertz,
            known->memory_rate,
            kLinkShare * lane_rate(known->generation) * known->lanes,
            static_cast<std::uint64_t>(known->memory_gib) << 30,
            known->multiprocessors * known->gigahertz * (is_geforce(*known) ? 512 : 1024) / 1000};
  }
  GpuCard card;
  char more = 0;
  const int read = std::sscanf(text.c_str(), "%d,%lf,%lf,%lf%c", &card.multiprocessors, &card.gigahertz,
                               &card.memory_rate, &card.link_rate, &more);
  const auto in_range = [](double x) { return x > 0 && x < 1e6; };
  if (read != 4 || !in_range(card.multiprocessors) || !in_range(card.gigahertz) || !in_range(card.memory_rate) ||
      !in_range(card.link_rate)) {
    fail(
        "--card {}: is no card that is known; give one of {}, or its multiprocessors, GHz, GB/s of memory and GB/s of "
        "the link, as in 34,2.5,448,27.2",
        text, names_of_cards());
  }
  return card;
}

}  // namespace hayloft::runtime::plan
