#include "runtime/cache/spills.h"

#include <exception>
#include <utility>

namespace hayloft::runtime {

Spills& Spills::operator=(Spills&& other) noexcept {
  abandon();
  backend_ = other.backend_;
  spills_ = std::move(other.spills_);
  return *this;
}

std::byte* Spills::start(int layer, offload::BlockWriter block) {
  spills_.push_back({layer, std::move(block)});
  return spills_.back().block.data();
}

std::vector<Spill> Spills::finish() {
  if (!spills_.empty()) backend_->synchronize(backend_->spill_stream());
  return std::exchange(spills_, {});
}

void Spills::abandon() noexcept {
  if (spills_.empty()) return;
  try {
    backend_->synchronize(backend_->spill_stream());
  } catch (const std::exception&) {  // the device is lost, and writes nothing any more
  }
  spills_.clear();
}

}  // namespace hayloft::runtime
