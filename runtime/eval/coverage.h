#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace hayloft::runtime::eval {

// Holds the errors that steps predict of their outputs against those that they have, head by head.
class Coverage {
 public:
  static constexpr double large = 0.25;  // an error that a warning should find
  static constexpr double factor = 3;

  void add(double predicted, double error) { pairs_.emplace_back(predicted, error); }

  std::int64_t count() const { return static_cast<std::int64_t>(pairs_.size()); }
  // Returns the chance that of a step with a large error and one without, the larger error was predicted for the first,
  // ties counting half: the area under the curve. Nothing where there are not both.
  std::optional<double> auc() const;
  // Returns the share of the predictions that lie within `factor` times the error, either way; nothing where there are
  // none.
  std::optional<double> within() const;

 private:
  std::vector<std::pair<double, double>> pairs_;
};

}  // namespace hayloft::runtime::eval
