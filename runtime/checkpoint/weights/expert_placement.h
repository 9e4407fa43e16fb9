#pragma once

#include <cstdint>
#include <vector>

#include "runtime/checkpoint/weights/weights.h"

// Places the experts that routers choose from beside a device, and counts what of its memory that takes.
namespace hayloft::runtime {

// Says where the experts of mixtures lie and are multiplied beside a device that has memory of its own: in that; in the
// machine's and multiplied by the device, which keeps some by use and to which the others cross the link; or in the
// machine's and multiplied by its processor, so that activations alone cross the link. `automatic` is `device` where
// all weights leave it an eighth of its memory, else what is predicted to decode faster, with prompts by `link`.
// Routers, and an expert that every token goes through, are on the device.
enum class ExpertPlace : std::uint8_t { automatic, device, link, near };
const char* name(ExpertPlace place);  // as --experts takes it

// Says where experts are beside a device.
struct ExpertPlacement {
  ExpertPlace place = ExpertPlace::device;  // not `automatic`
  int kept = 0;                             // experts of each layer in slots of the device
  int ring = 0;                             // slots for all layers, which others pass through
  bool prompts_over_link = false;           // of experts near the processor: chunks of prompts go to the device

  bool slots() const { return place == ExpertPlace::link || prompts_over_link; }
  bool operator==(const ExpertPlacement&) const = default;
};

// Holds the rates, in GB/s, by which `automatic` predicts: a machine's profile has those of the machine.
struct ExpertRates {
  double near = 40;  // of the machine's memory, read by its processor
  double link = 20;
};

// Says which share of the experts asked for a device holds that keeps a share of each layer's by use.
struct ExpertsHeld {
  // Says it of one share.
  struct Point {
    double kept = 0;
    double held = 0;
  };
  int experts = 0;              // of a layer of the model that it was measured of; 0: not measured
  std::vector<Point> measured;  // by kept, which ascends between 0 and 1; none: no expert is asked for more than others

  double at(double kept) const;  // on straight lines between what was measured, from (0, 0) to (1, 1)
};
// Returns the bytes of slots for so many layers with experts.
std::uint64_t expert_slots_bytes(const ExpertPlacement& placement, int layers, std::uint64_t slot_bytes);
// Chooses for a device that has `left` bytes for weights. The ring has room for all experts of a layer where that takes
// an eighth at most of what all other weights leave, and all slots take three quarters of it by `link`. `automatic`
// predicts as if no expert were asked for more often than others.
ExpertPlacement place_experts(const WeightSizes& sizes, ExpertPlace asked, std::uint64_t left,
                              const ExpertRates& rates = {});
// Returns `sizes` with the experts where `placement` says.
WeightSizes placed(const WeightSizes& sizes, const ExpertPlacement& placement, const ExpertsHeld& held = {});

// Experts that come over the link (runtime/decode/expert_slots.h) lie piece by piece in slots, all of one size.
inline constexpr std::uint64_t experts_at_once = 4;     // that are copied while others are multiplied
std::uint64_t expert_piece_bytes(std::uint64_t bytes);  // of a matrix or bias in a slot
std::uint64_t bytes_of(const Expert& expert);           // of all its pieces

}  // namespace hayloft::runtime
