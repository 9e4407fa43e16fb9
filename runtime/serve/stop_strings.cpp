#include "runtime/serve/stop_strings.h"

#include <algorithm>

namespace hayloft::runtime::serve {

StopStrings::StopStrings(std::vector<std::string> stops, bool keeps_runs)
    : stops_(std::move(stops)), keeps_runs_(keeps_runs) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopStrings::push(std::string_view text, bool hidden) {
  if (found_) return {};
  held_ += text;
  hidden_.resize(held_.size(), hidden);
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at < end) which_ = stop;
    end = std::min(end, at);
  }
  if (end != std::string::npos) {
    found_ = true;
    std::string shown = take(end);
    held_.clear();
    hidden_.clear();
    return shown;
  }
  std::size_t kept = 0;  // the longest end of what is there that begins a stop string
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > kept; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) kept = n;
    }
  }
  return take(held_.size() - kept);
}

std::string StopStrings::take(std::size_t bytes) {
  std::string shown;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (!hidden_[i]) shown += held_[i];
    if (!keeps_runs_) continue;
    if (runs_.empty() || runs_.back().special != hidden_[i]) runs_.push_back({{}, hidden_[i]});
    runs_.back().text += held_[i];
  }
  held_.erase(0, bytes);
  hidden_.erase(hidden_.begin(), hidden_.begin() + static_cast<std::ptrdiff_t>(bytes));
  return shown;
}

std::string StopStrings::rest() {
  return take(held_.size());
}

}  // namespace hayloft::runtime::serve
