#include "runtime/attention/budget.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "offload/error.h"
#include "offload/text/format.h"
#include "offload/text/list.h"

namespace hayloft::runtime {

std::int64_t Budget::of(std::int64_t tokens) const {
  const std::int64_t wanted =
      count > 0 ? count : static_cast<std::int64_t>(std::ceil(share * static_cast<double>(tokens)));
  return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, tokens));
}

std::string Budget::text() const {
  return count > 0 ? fmt::format("{}", count) : fmt::format("{:g}%", share * 100);
}

Budget parse_budget(std::string_view text, std::string_view option) {
  if (!text.empty() && text.back() == '%') {
    double percent = 0;
    const char* end = text.data() + text.size() - 1;
    const auto [stop, error] = std::from_chars(text.data(), end, percent);
    if (error != std::errc() || stop != end || !(percent > 0 && percent <= 100)) {
      fail("{} {}: a share is written as a number above 0 and up to 100 followed by %", option, text);
    }
    return {0, percent / 100};
  }
  const std::int64_t count = parse_count(text);
  if (count < 1) fail("{} {}: at least one position must be attended", option, text);
  return {count, 0};
}

Budgets::Budgets(std::vector<Budget> by_layer) : by_layer_(std::move(by_layer)) {
  if (by_layer_.empty()) by_layer_.emplace_back();
}

const Budget& Budgets::at(int layer) const {
  return by_layer_[std::min(static_cast<std::size_t>(layer), by_layer_.size() - 1)];
}

std::string Budgets::text() const {
  std::string text;
  for (const Budget& budget : by_layer_) {
    if (!text.empty()) text += ',';
    text += budget.text();
  }
  return text;
}

Budgets parse_budgets(std::string_view text, std::string_view option) {
  std::vector<Budget> by_layer;
  for (const std::string_view budget : split_list(text)) by_layer.push_back(parse_budget(budget, option));
  return Budgets(std::move(by_layer));
}

}  // namespace hayloft::runtime
