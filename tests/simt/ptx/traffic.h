#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

namespace hayloft::simt::ptx {

// Counts what a launch has asked of one kind of memory. An access is one instruction of one warp. Its transactions are,
// of device and pinned memory, the aligned pieces of 32 bytes that its lanes touch (CUDA C++ Programming Guide, "Global
// Memory"); of shared memory the passes over 32 banks of 4 bytes that it takes, lanes of 8 bytes going by halves of the
// warp and lanes of 16 by quarters. Caches are not looked at.
struct SpaceTraffic {
  std::uint64_t accesses = 0;
  std::uint64_t transactions = 0;
  std::uint64_t read_bytes = 0;  // that lanes named
  std::uint64_t written_bytes = 0;

  SpaceTraffic& operator+=(const SpaceTraffic& other);
};

struct Traffic {
  SpaceTraffic device;
  SpaceTraffic pinned;
  SpaceTraffic shared;
  std::uint64_t pinned_lines = 0;  // different lines of 128 bytes of pinned memory in a launch, summed over launches
  std::uint64_t pinned_pages = 0;  // and pages of 4 KiB

  Traffic& operator+=(const Traffic& other);
};

class TrafficCounter {
 public:
  enum class Place : std::uint8_t { device, pinned, shared };

  // An access of one lane; all those of a warp's instruction come before its end_access().
  void note(Place place, std::uint64_t address, unsigned bytes, bool write, unsigned lane);
  void end_access();

  Traffic total() const;

 private:
  struct Lane {
    std::uint64_t address;
    unsigned bytes;
    unsigned lane;
  };
  void end_global(SpaceTraffic& traffic, bool pinned);
  void end_shared();

  Traffic traffic_;
  std::array<std::vector<Lane>, 3> lanes_;  // of the access that is under way, by place
  std::vector<std::uint64_t> pieces_;
  std::unordered_set<std::uint64_t> lines_;
  std::unordered_set<std::uint64_t> pages_;
};

}  // namespace hayloft::simt::ptx
