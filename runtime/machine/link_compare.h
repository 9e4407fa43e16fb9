#pragma once

#include <filesystem>
#include <string>
#include <vector>

// What two machines gave, side by side: profiles, and whatever hayloft link --json wrote.
namespace hayloft::runtime::plan {

// A figure that was measured, under a name that means the same in every file.
struct MeasuredRate {
  std::string what;
  std::string unit;
  double value = 0;
  double slowest = 0;  // turn, in the same unit; 0: not known
  double fastest = 0;
  bool unreliable = false;
};

struct MeasuredMachine {
  std::string name;  // the host, its processor or device, and the date, as far as the file says
  std::vector<MeasuredRate> rates;
};

// Throws Error naming the file: unreadable, or neither a profile nor a report of the link.
MeasuredMachine read_measured(const std::filesystem::path& path);

// Every figure that both have, in the order of the first: the two values and their ratio, above 1 where the second is
// better, and a mark where the turns of the two overlap, so that another run may say otherwise. Figures that one of
// them lacks are named below. Markdown, or CSV.
std::string compare_table(const MeasuredMachine& a, const MeasuredMachine& b);
std::string compare_csv(const MeasuredMachine& a, const MeasuredMachine& b);

}  // namespace hayloft::runtime::plan
