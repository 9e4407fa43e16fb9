#include "tests/simt/ptx/traffic.h"

#include <algorithm>

namespace hayloft::simt::ptx {
namespace {

constexpr std::uint64_t piece_bytes = 32;
constexpr std::uint64_t line_bytes = 128;
constexpr std::uint64_t page_bytes = 4096;
constexpr unsigned banks = 32;
constexpr unsigned bank_bytes = 4;

void sort_out(std::vector<std::uint64_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

}  // namespace

SpaceTraffic& SpaceTraffic::operator+=(const SpaceTraffic& other) {
  accesses += other.accesses;
  transactions += other.transactions;
  read_bytes += other.read_bytes;
  written_bytes += other.written_bytes;
  return *this;
}

Traffic& Traffic::operator+=(const Traffic& other) {
  device += other.device;
  pinned += other.pinned;
  shared += other.shared;
  pinned_lines += other.pinned_lines;
  pinned_pages += other.pinned_pages;
  return *this;
}

void TrafficCounter::note(Place place, std::uint64_t address, unsigned bytes, bool write, unsigned lane) {
  SpaceTraffic& traffic = place == Place::device   ? traffic_.device
                          : place == Place::pinned ? traffic_.pinned
                                                   : traffic_.shared;
  (write ? traffic.written_bytes : traffic.read_bytes) += bytes;
  lanes_[static_cast<std::size_t>(place)].push_back({address, bytes, lane});
}

void TrafficCounter::end_access() {
  end_global(traffic_.device, false);
  end_global(traffic_.pinned, true);
  end_shared();
}

void TrafficCounter::end_global(SpaceTraffic& traffic, bool pinned) {
  std::vector<Lane>& lanes = lanes_[static_cast<std::size_t>(pinned ? Place::pinned : Place::device)];
  if (lanes.empty()) return;
  pieces_.clear();
  for (const Lane& lane : lanes) pieces_.push_back(lane.address / piece_bytes);  // aligned to its size, which is less
  lanes.clear();
  sort_out(pieces_);
  ++traffic.accesses;
  traffic.transactions += pieces_.size();
  if (!pinned) return;
  for (const std::uint64_t piece : pieces_) {
    lines_.insert(piece / (line_bytes / piece_bytes));
    pages_.insert(piece / (page_bytes / piece_bytes));
  }
}

void TrafficCounter::end_shared() {
  std::vector<Lane>& lanes = lanes_[static_cast<std::size_t>(Place::shared)];
  if (lanes.empty()) return;
  ++traffic_.shared.accesses;
  const unsigned bytes = lanes.front().bytes;
  const unsigned together = bytes <= bank_bytes ? banks : banks * bank_bytes / bytes;  // lanes of one pass
  for (unsigned first = 0; first < banks; first += together) {
    pieces_.clear();
    for (const Lane& lane : lanes) {
      if (lane.lane < first || lane.lane >= first + together) continue;
      for (unsigned at = 0; at < bytes; at += bank_bytes) pieces_.push_back((lane.address + at) / bank_bytes);
    }
    sort_out(pieces_);
    std::array<unsigned, banks> words{};
    for (const std::uint64_t word : pieces_) ++words[word % banks];
    traffic_.shared.transactions += *std::max_element(words.begin(), words.end());
  }
  lanes.clear();
}

Traffic TrafficCounter::total() const {
  Traffic total = traffic_;
  total.pinned_lines = lines_.size();
  total.pinned_pages = pages_.size();
  return total;
}

}  // namespace hayloft::simt::ptx
