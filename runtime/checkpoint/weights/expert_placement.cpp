#include "runtime/checkpoint/weights/expert_placement.h"

#include <algorithm>

namespace hayloft::runtime {

const char* name(ExpertPlace place) {
  constexpr const char* names[] = {"auto", "device", "link", "near"};
  return names[static_cast<std::size_t>(place)];
}

double ExpertsHeld::at(double kept) const {
  Point before, after{1, 1};
  for (const Point& point : measured) {
    if (point.kept >= kept) {
      after = point;
      break;
    }
    before = point;
  }
  if (after.kept <= before.kept) return after.held;
  return before.held + (after.held - before.held) * (kept - before.kept) / (after.kept - before.kept);
}

WeightSizes placed(const WeightSizes& whole, const ExpertPlacement& placement, const ExpertsHeld& held) {
  if (placement.place == ExpertPlace::device) return whole;
  WeightSizes sizes = whole;
  const std::uint64_t slots =
      placement.slots() ? expert_slots_bytes(placement, whole.mixture_layers, whole.slot_bytes) : 0;
  sizes.bytes += slots;
  sizes.host_bytes += whole.mixture_bytes;
  if (placement.place == ExpertPlace::link) {
    const double passing = 1 - held.at(static_cast<double>(placement.kept) / whole.experts);
    sizes.link_bytes_per_step = static_cast<std::uint64_t>(passing * static_cast<double>(whole.mixture_bytes_per_step));
    return sizes;
  }
  sizes.bytes_per_step -= whole.mixture_bytes_per_step;
  sizes.near_bytes_per_step = whole.mixture_bytes_per_step;
  sizes.expert_bytes_per_step = 0;
  for (std::size_t bits = 0; bits < whole.mixture_weights_per_step.size(); ++bits) {
    sizes.weights_per_step[bits] -= whole.mixture_weights_per_step[bits];
  }
  sizes.mixture_bytes_per_step = 0;
  sizes.mixture_weights_per_step = {};
  return sizes;
}

std::uint64_t expert_piece_bytes(std::uint64_t bytes) {
  constexpr std::uint64_t aligned = 256;
  return (bytes + aligned - 1) / aligned * aligned;
}

std::uint64_t bytes_of(const Expert& expert) {
  std::uint64_t bytes = 0;
  for (const gpu::Matrix* matrix : {&expert.gate, &expert.up, &expert.down}) {
    bytes += expert_piece_bytes(gpu::bytes_of(*matrix));
    // A bias may be there, and is small.
    bytes += expert_piece_bytes(static_cast<std::uint64_t>(matrix->rows) * sizeof(float));
  }
  return bytes;
}

std::uint64_t expert_slots_bytes(const ExpertPlacement& placement, int layers, std::uint64_t slot_bytes) {
  const auto ring = std::max(static_cast<std::uint64_t>(placement.ring), 2 * experts_at_once);
  return slot_bytes * (static_cast<std::uint64_t>(placement.kept) * static_cast<std::uint64_t>(layers) + ring);
}

ExpertPlacement place_experts(const WeightSizes& sizes, ExpertPlace asked, std::uint64_t left,
                              const ExpertRates& rates) {
  if (sizes.mixture_bytes == 0 || asked == ExpertPlace::device) return {};
  if (asked == ExpertPlace::automatic && sizes.bytes - sizes.host_bytes <= left / 8 * 7) return {};
  ExpertPlacement placement{asked};
  if (asked == ExpertPlace::near) return placement;
  const std::uint64_t others = sizes.bytes - sizes.host_bytes - sizes.mixture_bytes;
  const std::uint64_t rest = left - std::min(left, others);
  placement.ring = 2 * static_cast<int>(experts_at_once);
  const int of_layer = placement.ring + sizes.experts;
  if (sizes.slot_bytes * static_cast<unsigned>(of_layer) <= rest / 8) placement.ring = of_layer;
  const std::uint64_t most = rest / 4 * 3, ring = expert_slots_bytes(placement, 0, sizes.slot_bytes);
  const std::uint64_t of_each = sizes.slot_bytes * static_cast<unsigned>(sizes.mixture_layers);
  const std::uint64_t kept = (most - std::min(most, ring)) / of_each;
  placement.kept = static_cast<int>(std::min(kept, static_cast<std::uint64_t>(sizes.experts)));
  if (asked == ExpertPlace::link) return placement;
  placement.place = ExpertPlace::link;
  const double over_link = 1 - static_cast<double>(placement.kept) / sizes.experts;
  if (over_link / rates.link < 1 / rates.near) return placement;
  return {ExpertPlace::near, 0, placement.ring, true};
}

}  // namespace hayloft::runtime
