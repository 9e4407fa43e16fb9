#include "tests/simt/device/memory.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <vector>

namespace hayloft::simt {
namespace {

constexpr std::size_t device_alignment = 256;
constexpr std::size_t most_filled = std::size_t{64} << 20;  // so that who takes much and uses little is quick
constexpr std::size_t pattern_bytes = std::size_t{1} << 20;
constexpr std::uintptr_t page_bytes = 4096;

std::uintptr_t address_of(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

// Opens a file in memory of pattern_bytes that are 0xff; -1 when the system gives none.
int pattern_file() {
  static const int file = [] {
    const int made = memfd_create("unwritten", MFD_CLOEXEC);
    const std::vector<char> bytes(pattern_bytes, '\xff');
    const bool written = made >= 0 && write(made, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
    return written ? made : -1;
  }();
  return file;
}

}  // namespace

void fill_unwritten(void* data, std::size_t bytes) {
  const std::uintptr_t begin = address_of(data), end = begin + bytes;
  std::uintptr_t at = (begin + page_bytes - 1) / page_bytes * page_bytes;
  if (at + pattern_bytes > end || pattern_file() < 0) {
    std::memset(data, 0xff, bytes);
    return;
  }
  std::memset(data, 0xff, at - begin);
  for (; at + pattern_bytes <= end; at += pattern_bytes) {
    void* const piece = reinterpret_cast<void*>(at);
    if (mmap(piece, pattern_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, pattern_file(), 0) != piece) break;
  }
  std::memset(reinterpret_cast<void*>(at), 0xff, end - at);
}

void* Memory::allocate(std::size_t bytes, int device) {
  void* data = nullptr;
  if (posix_memalign(&data, device_alignment, bytes) != 0) return nullptr;
  fill_unwritten(data, std::min(bytes, most_filled));
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

MemoryPlace Memory::place(const void* data, std::size_t bytes) const {
  const std::uintptr_t begin = address_of(data);
  for (const Pieces* pieces : {&device_, &pinned_}) {
    const auto* piece = find(*pieces, begin);
    if (piece) {
      if (bytes > piece->first + piece->second.bytes - begin) throw std::out_of_range("past the end of a piece");
      return pieces == &device_ ? MemoryPlace::device : MemoryPlace::pinned;
    }
    const auto next = pieces->upper_bound(begin);
    if (next != pieces->end() && next->first - begin < bytes) throw std::out_of_range("into another piece");
  }
  return MemoryPlace::pageable;
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
