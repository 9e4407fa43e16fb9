#include "tests/simt/device/memory.h"

#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>

namespace hayloft::simt {
namespace {

constexpr std::size_t device_alignment = 256;
constexpr std::size_t most_filled = std::size_t{64} << 20;  // so that who takes much and uses little is quick

std::uintptr_t address_of(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

}  // namespace

void* Memory::allocate(std::size_t bytes, int device) {
  void* data = nullptr;
  if (posix_memalign(&data, device_alignment, bytes) != 0) return nullptr;
  std::memset(data, 0xff, std::min(bytes, most_filled));  // NaN as f32 and f16, -1 as an integer
  ASAN_POISON_MEMORY_REGION(data, bytes);
  device_[address_of(data)] = {bytes, false, false, device};
  device_bytes_[device] += bytes;
  return data;
}

void Memory::begin(void* data) {
  Piece& piece = device_.at(address_of(data));
  piece.usable = true;
  if (opened_ > 0) ASAN_UNPOISON_MEMORY_REGION(data, piece.bytes);
}

bool Memory::release(void* data) {
  const auto piece = device_.find(address_of(data));
  if (piece == device_.end()) return false;
  device_bytes_[piece->second.device] -= piece->second.bytes;
  ASAN_UNPOISON_MEMORY_REGION(data, piece->second.bytes);
  device_.erase(piece);
  std::free(data);
  return true;
}

bool Memory::pin(void* data, std::size_t bytes, bool owned) {
  const std::uintptr_t begin = address_of(data);
  const auto next = pinned_.lower_bound(begin + bytes);
  if (next != pinned_.begin()) {
    const auto& before = *std::prev(next);
    if (before.first + before.second.bytes > begin) return false;
  }
  pinned_[begin] = {bytes, true, owned};
  pinned_bytes_ += bytes;
  return true;
}

bool Memory::unpin(void* data, bool owned) {
  const auto piece = pinned_.find(address_of(data));
  if (piece == pinned_.end() || piece->second.owned != owned) return false;
  pinned_bytes_ -= piece->second.bytes;
  pinned_.erase(piece);
  return true;
}

const Memory::Pieces::value_type* Memory::find(const Pieces& pieces, std::uintptr_t address) {
  const auto next = pieces.upper_bound(address);
  if (next == pieces.begin()) return nullptr;
  const auto& before = *std::prev(next);
  return address < before.first + before.second.bytes ? &before : nullptr;
}

Place Memory::place(const void* data, std::size_t bytes) const {
  const std::uintptr_t begin = address_of(data);
  for (const Pieces* pieces : {&device_, &pinned_}) {
    const auto* piece = find(*pieces, begin);
    if (piece) {
      if (bytes > piece->first + piece->second.bytes - begin) throw std::out_of_range("past the end of a piece");
      return pieces == &device_ ? Place::device : Place::pinned;
    }
    const auto next = pieces->upper_bound(begin);
    if (next != pieces->end() && next->first - begin < bytes) throw std::out_of_range("into another piece");
  }
  return Place::pageable;
}

std::pair<std::uintptr_t, std::uintptr_t> Memory::reachable(std::uintptr_t address) const {
  for (const Pieces* pieces : {&device_, &pinned_}) {
    const auto* piece = find(*pieces, address);
    if (piece && piece->second.usable) return {piece->first, piece->first + piece->second.bytes};
  }
  return {0, 0};
}

int Memory::device_of(const void* data) const {
  const auto* const piece = find(device_, address_of(data));
  return piece ? piece->second.device : -1;
}

std::uint64_t Memory::device_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [device, bytes] : device_bytes_) sum += bytes;
  return sum;
}

std::uint64_t Memory::device_bytes(int device) const {
  const auto found = device_bytes_.find(device);
  return found == device_bytes_.end() ? 0 : found->second;
}

void Memory::open() {
  if (opened_++ > 0) return;
  for (const auto& [address, piece] : device_) {
    if (piece.usable) ASAN_UNPOISON_MEMORY_REGION(reinterpret_cast<void*>(address), piece.bytes);
  }
}

void Memory::close() {
  if (--opened_ > 0) return;
  for (const auto& [address, piece] : device_) ASAN_POISON_MEMORY_REGION(reinterpret_cast<void*>(address), piece.bytes);
}

}  // namespace hayloft::simt
