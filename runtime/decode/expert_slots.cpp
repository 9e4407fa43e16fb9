#include "runtime/decode/expert_slots.h"

#include <algorithm>

namespace hayloft::runtime {
namespace {

constexpr float kFade = 0.98f;  // of a count, by each pass: half of it stays after 34

int layers_with_experts(const std::vector<LayerWeights>& layers) {
  return static_cast<int>(
      std::ranges::count_if(layers, [](const LayerWeights& layer) { return !layer.experts.each.empty(); }));
}

}  // namespace

ExpertSlots::ExpertSlots(gpu::Backend& backend, const std::vector<LayerWeights>& layers, int kept)
    : backend_(backend), weights_(layers), layers_(layers.size()) {
  for (const LayerWeights& layer : layers) {
    for (const Expert& expert : layer.experts.each) slot_bytes_ = std::max(slot_bytes_, bytes_of(expert));
  }
  memory_ = backend.allocate_weights(expert_slots_bytes(kept, layers_with_experts(layers), slot_bytes_),
                                     backend.stream());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::size_t experts = layers[i].experts.each.size();
    if (experts == 0) continue;
    layers_[i].slots.resize(std::min(static_cast<std::size_t>(kept), experts));
    layers_[i].slot_of.assign(experts, -1);
    layers_[i].uses.assign(experts, 0);
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

// Returns the slot of a layer that an expert which is in none may take, or null. Those that this pass uses stay, for
// what multiplies by them may not have run yet.
ExpertSlots::Slot* ExpertSlots::place_of(Layer& layer, int expert) {
  Slot* least = nullptr;
  const auto uses = [&](const Slot& slot) {
    return slot.expert < 0 ? -1.0f : layer.uses[static_cast<std::size_t>(slot.expert)];
  };
  for (Slot& slot : layer.slots) {
    if (slot.pass != pass_ && (least == nullptr || uses(slot) < uses(*least))) least = &slot;
  }
  return least && uses(*least) < layer.uses[static_cast<std::size_t>(expert)] ? least : nullptr;
}

// Queues the copies of as many experts as there are slots to pass by in one half of them.
ExpertSlots::Group ExpertSlots::take_group(int index, std::span<const ExpertTokens> left, int half) {
  Layer& layer = layers_[static_cast<std::size_t>(index)];
  const std::vector<Expert>& host = weights_[static_cast<std::size_t>(index)].experts.each;
  std::uint64_t before = 2 * passing_experts;  // slots before this layer's
  for (int i = 0; i < index; ++i) before += layers_[static_cast<std::size_t>(i)].slots.size();
  std::byte* const memory = memory_.as<std::byte>();

  Group group;
  group.passing.reserve(passing_experts);  // experts point into it
  std::size_t n = 0;
  for (; n < left.size(); ++n) {
    const int expert = left[n].expert;
    const int at = layer.slot_of[static_cast<std::size_t>(expert)];
    Slot* slot = at < 0 ? place_of(layer, expert) : &layer.slots[static_cast<std::size_t>(at)];
    if (slot == nullptr && group.passing.size() == passing_experts) break;
    ++traffic_.asked;
    if (at >= 0) {
      ++traffic_.held;
    } else if (slot != nullptr) {
      if (slot->expert >= 0) layer.slot_of[static_cast<std::size_t>(slot->expert)] = -1;
      slot->expert = -1;  // should a copy fail
      const auto number = static_cast<std::uint64_t>(slot - layer.slots.data());
      slot->weights = copy_in(host[static_cast<std::size_t>(expert)], memory + (before + number) * slot_bytes_);
      slot->expert = expert;
      layer.slot_of[static_cast<std::size_t>(expert)] = static_cast<int>(number);
    } else {
      const std::uint64_t number = static_cast<unsigned>(half) * passing_experts + group.passing.size();
      slot = &group.passing.emplace_back();
      slot->weights = copy_in(host[static_cast<std::size_t>(expert)], memory + number * slot_bytes_);
    }
    slot->pass = pass_;
    group.experts.push_back(&slot->weights);
  }
  group.tokens = left.first(n);
  return group;
}

void ExpertSlots::each_group(int index, std::span<const ExpertTokens> chosen, const Multiply& multiply) {
  const std::lock_guard lock(mutex_);
  Layer& layer = layers_[static_cast<std::size_t>(index)];
  ++pass_;
  for (float& uses : layer.uses) uses *= kFade;
  for (const ExpertTokens& each : chosen) layer.uses[static_cast<std::size_t>(each.expert)] += 1;

  const gpu::Stream stream = backend_.stream(), load = backend_.load_stream();
  backend_.order(stream, load);  // what earlier passes multiply by is in its slot until then
  int half = 0;
  for (Group group = take_group(index, chosen, half); !group.tokens.empty();) {
    const std::span<const ExpertTokens> left = chosen.subspan(group.tokens.size());
    backend_.order(load, stream);
    if (!left.empty()) backend_.order(stream, load);  // the other half was multiplied by before this one
    multiply(group.tokens, group.experts);
    half = 1 - half;
    group = take_group(index, left, half);
    chosen = left;
  }
}

}  // namespace hayloft::runtime
