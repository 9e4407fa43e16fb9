#include "runtime/decode/expert_slots.h"

#include <algorithm>
#include <utility>

namespace hayloft::runtime {
namespace {

int layers_with_experts(const std::vector<LayerWeights>& layers) {
  return static_cast<int>(
      std::ranges::count_if(layers, [](const LayerWeights& layer) { return !layer.experts.each.empty(); }));
}

}  // namespace

ExpertSlots::ExpertSlots(gpu::Backend& backend, const std::vector<LayerWeights>& layers,
                         const ExpertPlacement& placement)
    : backend_(backend),
      weights_(layers),
      ring_(static_cast<std::size_t>(std::max(placement.ring, 2 * static_cast<int>(experts_at_once)))) {
  for (const LayerWeights& layer : layers) {
    for (const Expert& expert : layer.experts.each) slot_bytes_ = std::max(slot_bytes_, bytes_of(expert));
  }
  memory_ = backend.allocate_weights(expert_slots_bytes(placement, layers_with_experts(layers), slot_bytes_),
                                     backend.stream());
  auto* memory = memory_.as<std::byte>();
  const auto give_memory = [&](std::vector<Slot>& slots) {
    for (Slot& slot : slots) slot.memory = std::exchange(memory, memory + slot_bytes_);
  };
  give_memory(ring_);
  layers_.reserve(layers.size());
  for (const LayerWeights& layer : layers) {
    const std::size_t experts = layer.experts.each.size();
    layers_.emplace_back(experts).kept.resize(std::min(static_cast<std::size_t>(placement.kept), experts));
    give_memory(layers_.back().kept);
  }
}

ExpertTraffic ExpertSlots::traffic() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

// Copies on the load stream. Returns the expert as it will lie there.
Expert ExpertSlots::copy_in(const Expert& host, std::byte* to) {
  const auto copy = [&](const void* from, std::uint64_t bytes) -> const void* {
    if (from == nullptr) return nullptr;
    backend_.queue_to_device(to, from, bytes, backend_.load_stream());
    traffic_.link_bytes += bytes;
    const void* const at = to;
    to += expert_piece_bytes(bytes);
    return at;
  };
  Expert there = host;
  for (gpu::Matrix* matrix : {&there.gate, &there.up, &there.down}) {
    matrix->data = copy(matrix->data, gpu::bytes_of(*matrix));
  }
  const auto copy_bias = [&](const float* from, int n) {
    return static_cast<const float*>(copy(from, static_cast<std::uint64_t>(n) * sizeof(float)));
  };
  there.gate_bias = copy_bias(host.gate_bias, host.gate.rows);
  there.up_bias = copy_bias(host.up_bias, host.up.rows);
  there.down_bias = copy_bias(host.down_bias, host.down.rows);
  return there;
}

// Returns whether a slot may be copied to: copies wait for products of the group before the last one.
bool ExpertSlots::is_free(const Slot& slot) const {
  return slot.group + 2 <= group_;
}

// Returns the slot of a layer that an expert which is in none may keep, or null.
ExpertSlots::Slot* ExpertSlots::kept_slot(Layer& layer, int expert) {
  Slot* least = nullptr;
  const auto uses = [&](const Slot& slot) { return slot.layer < 0 ? -1.0f : layer.uses.of(slot.expert); };
  for (Slot& slot : layer.kept) {
    if (is_free(slot) && (least == nullptr || uses(slot) < uses(*least))) least = &slot;
  }
  return least && uses(*least) < layer.uses.of(expert) ? least : nullptr;
}

// Finds one always: two groups that follow each other use half of the ring each, at most.
ExpertSlots::Slot& ExpertSlots::next_of_ring() {
  do {
    next_ = (next_ + 1) % ring_.size();
  } while (!is_free(ring_[next_]));
  return ring_[next_];
}

void ExpertSlots::bring(int layer, int expert, Slot& slot) {
  if (slot.layer >= 0)
    layers_[static_cast<std::size_t>(slot.layer)].slot_of[static_cast<std::size_t>(slot.expert)] = nullptr;
  slot.layer = -1;  // should a copy fail
  slot.weights =
      copy_in(weights_[static_cast<std::size_t>(layer)].experts.each[static_cast<std::size_t>(expert)], slot.memory);
  slot.layer = layer;
  slot.expert = expert;
  layers_[static_cast<std::size_t>(layer)].slot_of[static_cast<std::size_t>(expert)] = &slot;
}

// Queues the copies of as many experts as come at once, and has those before and between them that are there.
ExpertSlots::Group ExpertSlots::take_group(int index, std::span<const ExpertTokens> left) {
  Layer& layer = layers_[static_cast<std::size_t>(index)];
  const auto in_ring = [&](const Slot* slot) { return slot >= ring_.data() && slot < ring_.data() + ring_.size(); };
  Group group;
  ++group_;
  std::size_t n = 0, brought = 0, of_ring = 0;
  for (; n < left.size(); ++n) {
    const int expert = left[n].expert;
    Slot* slot = layer.slot_of[static_cast<std::size_t>(expert)];
    if (slot == nullptr && brought == experts_at_once) break;
    if (of_ring == ring_.size() / 2 && (slot == nullptr || in_ring(slot))) break;
    ++traffic_.asked;
    if (slot != nullptr) {
      ++traffic_.held;
    } else {
      slot = kept_slot(layer, expert);
      if (slot == nullptr) slot = &next_of_ring();
      bring(index, expert, *slot);
      ++brought;
    }
    of_ring += in_ring(slot) ? 1 : 0;
    slot->group = group_;
    group.experts.push_back(&slot->weights);
  }
  group.tokens = left.first(n);
  return group;
}

void ExpertSlots::each_group(int index, std::span<const ExpertTokens> chosen, const Multiply& multiply) {
  const std::lock_guard lock(mutex_);
  Layer& layer = layers_[static_cast<std::size_t>(index)];
  layer.uses.fade();
  for (const ExpertTokens& each : chosen) layer.uses.add(each.expert);

  const gpu::Stream stream = backend_.stream(), load = backend_.load_stream();
  backend_.order(stream, load);  // what earlier passes multiply by is in its slot until then
  ++group_;
  for (Group group = take_group(index, chosen); !group.tokens.empty(); group = take_group(index, chosen)) {
    chosen = chosen.subspan(group.tokens.size());
    backend_.order(load, stream);
    if (!chosen.empty()) backend_.order(stream, load);  // products of the groups before this one
    multiply(group.tokens, group.experts);
  }
}

}  // namespace hayloft::runtime
