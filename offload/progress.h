#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace hayloft {

// Says where progress is shown, and by which clock. A terminal's line is rewritten; elsewhere plain lines appear now
// and then.
struct ProgressSink {
  std::function<void(std::string_view text)> write;
  std::function<double()> seconds;  // monotonic
  bool terminal = false;
};
ProgressSink stderr_progress();

// Progress of one piece of long work, with its rate and the time left. Cheap enough to be told about every step: a
// terminal is refreshed ten times a second; a log gets a line for every tenth of the work, at
// most one a second, and one every 15 seconds where a tenth takes longer. Not thread-safe.
class Progress {
 public:
  // begun: how much of `total` was done before, by an earlier run; it does not count for the rate.
  Progress(ProgressSink sink, std::string what, std::string unit, std::int64_t total, std::int64_t begun = 0);
  ~Progress();  // takes an unfinished line off the terminal
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::int64_t done);  // at `total` the terminal gets its line back, a log its last line

 private:
  std::string figures(std::int64_t done, double elapsed) const;
  void clear_line();

  ProgressSink sink_;
  std::string what_;
  std::string unit_;
  std::int64_t total_;
  std::int64_t begun_;
  double start_;  // on the sink's clock, as is shown_at_
  double shown_at_;
  std::int64_t shown_tenths_ = 0;  // of the work, told to the log so far
  bool on_screen_ = false;
};

// "1:07", "2:03:09".
std::string clock_time(double seconds);

}  // namespace hayloft
