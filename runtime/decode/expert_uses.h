#pragma once

#include <span>
#include <vector>

namespace hayloft::runtime {

// Counts how often the experts of a layer have been asked for lately, by which they stay in slots of a device. Each
// pass fades the counts: half of one stays after 34.
class ExpertUses {
 public:
  explicit ExpertUses(int experts) : uses_(static_cast<std::size_t>(experts)) {}

  void fade();
  void add(int expert) { uses_[static_cast<std::size_t>(expert)] += 1; }
  float of(int expert) const { return uses_[static_cast<std::size_t>(expert)]; }

 private:
  std::vector<float> uses_;
};

// Says which experts of a layer a device would hold that keeps so many by use, as ExpertSlots keeps them: one that is
// asked for takes the place of the one with the smallest count, if its own is larger.
class KeptExperts {
 public:
  KeptExperts(int experts, int slots) : uses_(experts), kept_(static_cast<std::size_t>(slots), none) {}

  // A pass asks for those, each once. Returns how many of them were held before it.
  int ask(std::span<const int> experts);

 private:
  static constexpr int none = -1;

  ExpertUses uses_;
  std::vector<int> kept_;
};

}  // namespace hayloft::runtime
