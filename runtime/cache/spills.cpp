#include "runtime/cache/spills.h"

#include <algorithm>
#include <exception>
#include <iterator>

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

int Spills::started(int layer) const {
  return static_cast<int>(
      std::count_if(spills_.begin(), spills_.end(), [&](const Spill& spill) { return spill.layer == layer; }));
}

std::vector<Spill> Spills::finish(int begin, int end) {
  std::vector<Spill> finished;
  if (spills_.empty()) return finished;
  backend_->synchronize(backend_->spill_stream());
  const auto wanted = std::stable_partition(
      spills_.begin(), spills_.end(), [&](const Spill& spill) { return spill.layer < begin || spill.layer >= end; });
  finished.assign(std::make_move_iterator(wanted), std::make_move_iterator(spills_.end()));
  spills_.erase(wanted, spills_.end());
  return finished;
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
