#include "runtime/fidelity/attention_statement.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/fidelity/audit_report.h"

namespace hayloft::runtime {
namespace {

constexpr double every_position = 1 - 1e-9;  // but for rounding

}  // namespace

void AttentionStatement::add(const Session& session) {
  for (const auto& [method, count] : session.methods_used()) methods[method] += count;
  attended += session.attended_share() * static_cast<double>(session.steps());
  steps += session.steps();
}

bool AttentionStatement::exact() const {
  if (over_ranks) return std::ranges::all_of(methods, [](const auto& each) { return each.first == "dense"; });
  return share() > every_position;
}

std::string AttentionStatement::text(bool named) const {
  const std::string by = methods_line(methods);
  if (exact()) return named && steps > 0 ? fmt::format("exact: {}", by) : "exact";
  if (over_ranks) return fmt::format("approximate: {}", by);
  std::string line = fmt::format("approximate: {:.1f}% of the positions attended to, by {}", share() * 100, by);
  if (mass) {
    line += fmt::format("; {:.1f}% of the attention mass caught in {} sampled steps of single layers", *mass * 100,
                        samples);
  } else if (measurable) {
    line += "; --audit measures what that catches";
  }
  return line;
}

std::string attention_statement(double attended_share, const std::string& method, std::optional<double> mass) {
  if (attended_share > every_position) return "exact";
  std::string line =
      fmt::format("approximate: {:.1f}% of the positions attended to, by {}", attended_share * 100, method);
  if (mass) line += fmt::format("; {:.1f}% of the attention mass caught", *mass * 100);
  return line;
}

}  // namespace hayloft::runtime
