#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hayloft::runtime {

// A number of positions, or a share of the context.
struct Budget {
  std::int64_t count = 0;
  double share = 0;  // used when count is 0

  std::int64_t of(std::int64_t tokens) const;  // at least 1, at most tokens
  std::string text() const;                    // "128" or "1%"
  friend bool operator==(const Budget&, const Budget&) = default;
};
Budget parse_budget(std::string_view text, std::string_view option);  // throws Error naming the option

// A budget per global layer: entry i is that of layer i, and the last one that of every layer behind it (the top-k
// paper's larger k in the first layer, arXiv 2502.06766, appendix A.3).
class Budgets {
 public:
  Budgets(Budget all = {128, 0}) : by_layer_{all} {}
  explicit Budgets(std::vector<Budget> by_layer);  // one entry at least

  const Budget& at(int layer) const;
  const std::vector<Budget>& by_layer() const { return by_layer_; }
  std::string text() const;  // "128", "512,64"
  friend bool operator==(const Budgets&, const Budgets&) = default;

 private:
  std::vector<Budget> by_layer_;
};
Budgets parse_budgets(std::string_view text, std::string_view option);  // with commas between them

}  // namespace hayloft::runtime
