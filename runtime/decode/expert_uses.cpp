#include "runtime/decode/expert_uses.h"

#include <algorithm>

namespace hayloft::runtime {

void ExpertUses::fade() {
  constexpr float kFade = 0.98f;
  for (float& uses : uses_) uses *= kFade;
}

int KeptExperts::ask(std::span<const int> experts) {
  uses_.fade();
  for (const int expert : experts) uses_.add(expert);
  const auto uses = [&](int expert) { return expert == none ? -1.0f : uses_.of(expert); };
  int held = 0;
  std::vector<int> lacking;
  for (const int expert : experts) {
    if (std::ranges::find(kept_, expert) == kept_.end())
      lacking.push_back(expert);
    else
      ++held;
  }
  for (const int expert : lacking) {
    const auto least = std::ranges::min_element(kept_, {}, uses);
    if (least != kept_.end() && uses(*least) < uses(expert)) *least = expert;
  }
  return held;
}

}  // namespace hayloft::runtime
