#include "offload/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

namespace hayloft {
namespace {

constexpr double refresh_seconds = 0.1;
constexpr double log_seconds = 15;
constexpr double log_rest_seconds = 1;  // what is over in no time needs no log
constexpr int bar_cells = 24;

std::string bar(std::int64_t done, std::int64_t total) {
  const auto full = static_cast<std::size_t>(bar_cells * done / total);
  return '[' + std::string(full, '#') + std::string(bar_cells - full, '.') + ']';
}

}  // namespace

ProgressSink stderr_progress() {
  return {[](std::string_view text) {
            std::fwrite(text.data(), 1, text.size(), stderr);
            std::fflush(stderr);
          },
          [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); },
          ::isatty(STDERR_FILENO) != 0};
}

std::string clock_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  const std::int64_t hours = whole / 3600;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

Progress::Progress(ProgressSink sink, std::string what, std::string unit, std::int64_t total, std::int64_t begun)
    : sink_(std::move(sink)),
      what_(std::move(what)),
      unit_(std::move(unit)),
      total_(std::max<std::int64_t>(1, total)),
      begun_(begun),
      start_(sink_.seconds()),
      shown_at_(start_) {}

Progress::~Progress() {
  clear_line();
}

void Progress::update(std::int64_t done) {
  done = std::clamp<std::int64_t>(done, 0, total_);
  const double now = sink_.seconds();
  const bool over = done == total_;
  if (sink_.terminal) {
    if (over) return clear_line();
    if (on_screen_ && now - shown_at_ < refresh_seconds) return;
    sink_.write(fmt::format("\r{} {} {}\x1b[K", what_, bar(done, total_), figures(done, now - start_)));
    on_screen_ = true;
  } else {
    const std::int64_t tenths = 10 * done / total_;
    const double since = now - shown_at_;
    if (since < log_rest_seconds && !(over && shown_tenths_ > 0)) return;
    if (tenths == shown_tenths_ && since < log_seconds) return;
    shown_tenths_ = tenths;
    sink_.write(fmt::format("{}: {}\n", what_, figures(done, now - start_)));
  }
  shown_at_ = now;
}

std::string Progress::figures(std::int64_t done, double elapsed) const {
  std::string text = fmt::format("{} of {} {} ({}%)", done, total_, unit_, 100 * done / total_);
  if (done <= begun_ || elapsed <= 0) return text;
  const double rate = static_cast<double>(done - begun_) / elapsed;
  text += rate < 10 ? fmt::format(", {:.2g} {}/s", rate, unit_) : fmt::format(", {:.0f} {}/s", rate, unit_);
  if (done == total_) return text + fmt::format(", took {}", clock_time(elapsed));
  return text + fmt::format(", {} left", clock_time(static_cast<double>(total_ - done) / rate));
}

void Progress::clear_line() {
  if (std::exchange(on_screen_, false)) sink_.write("\r\x1b[K");
}

}  // namespace hayloft
