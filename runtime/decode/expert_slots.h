#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "gpu/backend.h"
#include "runtime/checkpoint/weights/expert_placement.h"
#include "runtime/decode/expert_uses.h"
#include "runtime/decode/router.h"

namespace hayloft::runtime {

// Counts what passes have asked of experts that lie in host memory.
struct ExpertTraffic {
  std::uint64_t asked = 0;       // experts, each once for a layer and pass, however many tokens go through it
  std::uint64_t held = 0;        // of them, those that were in a slot already
  std::uint64_t link_bytes = 0;  // that came over the link for the others

  ExpertTraffic& operator+=(const ExpertTraffic& other) {
    asked += other.asked, held += other.held, link_bytes += other.link_bytes;
    return *this;
  }
  friend ExpertTraffic operator-(const ExpertTraffic& a, const ExpertTraffic& b) {
    return {a.asked - b.asked, a.held - b.held, a.link_bytes - b.link_bytes};
  }
};

// Brings experts from host memory to a device. Every layer has slots of its own, in which experts stay by use: each
// pass counts those that it asks for, and counts fade; an expert that comes in takes the place of the one with the
// smallest count, if its own is larger, and otherwise a slot of a ring for all layers, in turn, from which it can be
// had until its slot is taken again: with room for a layer, chunks of a prompt that go through it one after another
// bring its experts once. While some are multiplied the next are copied. What a product gives does not depend on where
// its matrix came from. Thread-safe.
class ExpertSlots {
 public:
  // layers: whose experts lie in memory of backend.host_memory(), and outlive this object, as the backend does. It
  // takes expert_slots_bytes() of the device. Throws Error.
  ExpertSlots(gpu::Backend& backend, const std::vector<LayerWeights>& layers, const ExpertPlacement& placement);

  // Calls multiply() for some of the experts after the others, in order, with their weights on the device, for it to
  // queue work on the backend's stream.
  using Multiply = std::function<void(std::span<const ExpertTokens> tokens, std::span<const Expert* const> experts)>;
  void each_group(int layer, std::span<const ExpertTokens> chosen, const Multiply& multiply);

  ExpertTraffic traffic() const;

 private:
  struct Slot {
    std::byte* memory = nullptr;
    int layer = -1;  // whose expert is in it; -1: none
    int expert = 0;
    Expert weights;
    std::uint64_t group = 0;  // that used it last
  };
  struct Layer {
    explicit Layer(std::size_t experts) : slot_of(experts), uses(static_cast<int>(experts)) {}
    std::vector<Slot> kept;
    std::vector<Slot*> slot_of;  // [experts], kept or of the ring; null: it is in none
    ExpertUses uses;
  };
  struct Group {
    std::span<const ExpertTokens> tokens;
    std::vector<const Expert*> experts;
  };

  Group take_group(int layer, std::span<const ExpertTokens> left);
  bool is_free(const Slot& slot) const;
  Slot* kept_slot(Layer& layer, int expert);
  Slot& next_of_ring();
  void bring(int layer, int expert, Slot& slot);
  Expert copy_in(const Expert& host, std::byte* to);

  gpu::Backend& backend_;
  const std::vector<LayerWeights>& weights_;
  std::uint64_t slot_bytes_ = 0;
  gpu::Buffer memory_;
  std::vector<Layer> layers_;
  std::vector<Slot> ring_;
  std::size_t next_ = 0;  // of the ring
  mutable std::mutex mutex_;
  std::uint64_t group_ = 1;  // the one that is taken
  ExpertTraffic traffic_;
};

}  // namespace hayloft::runtime
