#include "runtime/serve/stop_strings.h"

#include <algorithm>

namespace hayloft::runtime::serve {

StopStrings::StopStrings(std::vector<std::string> stops, bool keeps_runs)
    : stops_(std::move(stops)), keeps_runs_(keeps_runs) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopStrings::push(std::string_view text, Kind first, Kind others) {
  if (found_) return {};
  held_ += text;
  const std::size_t before = kinds_.size();
  kinds_.resize(held_.size(), others);
  if (kinds_.size() > before) kinds_[before] = first;
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = find(stop);
    if (at < end) which_ = stop;
    end = std::min(end, at);
  }
  if (end != std::string::npos) {
    found_ = true;
    while (rest_of_token(kinds_[end])) --end;
    std::string shown = take(end);
    held_.clear();
    kinds_.clear();
    return shown;
  }
  std::size_t kept = 0;  // the longest end of what is there that begins a stop string
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > kept; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) kept = n;
    }
  }
  while (kept > 0 && rest_of_token(kinds_[held_.size() - kept])) ++kept;  // special tokens are let go whole
  return take(held_.size() - kept);
}

std::size_t StopStrings::find(std::string_view stop) const {
  for (std::size_t at = held_.find(stop); at != std::string::npos; at = held_.find(stop, at + 1)) {
    const auto begin = kinds_.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end = begin + static_cast<std::ptrdiff_t>(stop.size());
    const bool cuts = *begin == Kind::whole_rest || (end != kinds_.end() && *end == Kind::whole_rest);
    const bool head = std::find(begin, end, Kind::head) != end;
    if (!cuts && (!head || std::any_of(begin, end, special))) return at;
  }
  return std::string::npos;
}

std::string StopStrings::take(std::size_t bytes) {
  std::string shown;
  for (std::size_t i = 0; i < bytes; ++i) {
    const bool hidden = special(kinds_[i]);
    if (!hidden) shown += held_[i];
    if (!keeps_runs_) continue;
    if (runs_.empty() || runs_.back().special != hidden || kinds_[i] == Kind::token) runs_.push_back({{}, hidden});
    runs_.back().text += held_[i];
  }
  held_.erase(0, bytes);
  kinds_.erase(kinds_.begin(), kinds_.begin() + static_cast<std::ptrdiff_t>(bytes));
  return shown;
}

std::string StopStrings::rest() {
  return take(held_.size());
}

}  // namespace hayloft::runtime::serve
