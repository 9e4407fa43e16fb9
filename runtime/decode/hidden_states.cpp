#include "runtime/decode/hidden_states.h"

#include <algorithm>
#include <exception>

namespace hayloft::runtime {

HiddenStates::HiddenStates(gpu::Backend& backend, std::int64_t tokens, std::int64_t width, std::int64_t chunk,
                           bool on_device)
    : backend_(backend), tokens_(tokens), width_(width), chunk_(std::min(chunk, tokens)) {
  const auto bytes = [&](std::int64_t count) { return static_cast<std::uint64_t>(count * width_) * sizeof(float); };
  if (on_device) {
    all_ = backend_.allocate(bytes(tokens_), backend_.stream());
    return;
  }
  host_ = backend_.host_memory(bytes(tokens_));
  for (gpu::Buffer& buffer : buffers_) buffer = backend_.allocate(bytes(chunk_), backend_.stream());
}

HiddenStates::~HiddenStates() {
  if (all_) return;
  try {
    backend_.synchronize(backend_.load_stream());
    backend_.synchronize(backend_.spill_stream());
  } catch (const std::exception&) {  // the device is lost, and copies nothing any more
  }
}

void HiddenStates::load(std::int64_t at) {
  // Behind the work on the chunk that was in this buffer, and behind what brought that one, and these states, home.
  backend_.order(backend_.stream(), backend_.load_stream());
  backend_.order(backend_.spill_stream(), backend_.load_stream());
  const std::int64_t T = std::min(chunk_, tokens_ - at);
  backend_.queue_to_device(buffers_[turn_].as<void>(), reinterpret_cast<float*>(host_.get()) + at * width_,
                           static_cast<std::uint64_t>(T * width_) * sizeof(float), backend_.load_stream());
  coming_ = at;
}

float* HiddenStates::begin(std::int64_t at, bool fresh) {
  if (all_) return all_.as<float>() + at * width_;
  if (!fresh) {
    if (coming_ != at) load(at);
    backend_.order(backend_.load_stream(), backend_.stream());
  }
  current_ = buffers_[turn_].as<float>();
  turn_ = 1 - turn_;
  coming_ = -1;
  if (!fresh && at + chunk_ < tokens_) load(at + chunk_);
  return current_;
}

void HiddenStates::keep(std::int64_t at, int T) {
  if (all_) return;
  // The next chunk's work may write into the other buffer at once, so it waits for what leaves that one.
  backend_.order(backend_.spill_stream(), backend_.stream());
  backend_.order(backend_.stream(), backend_.spill_stream());
  backend_.queue_to_host(reinterpret_cast<float*>(host_.get()) + at * width_, current_,
                         static_cast<std::uint64_t>(T * width_) * sizeof(float), backend_.spill_stream());
}

}  // namespace hayloft::runtime
