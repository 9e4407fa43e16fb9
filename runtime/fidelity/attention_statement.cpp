#include "runtime/fidelity/attention_statement.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "offload/text/json_text.h"
#include "runtime/fidelity/audit_report.h"

namespace hayloft::runtime {
namespace {

constexpr double every_position = 1 - 1e-9;  // but for rounding

}  // namespace

void AttentionStatement::add(const Session& session) {
  for (const auto& [method, count] : session.methods_used()) methods[method] += count;
  attended += session.attended_share() * static_cast<double>(session.steps());
  steps += session.steps();
  predicted += session.predicted_error();
  const PrefillOptions& prefill = session.prefill_options();
  if (prefill.kind != PrefillOptions::Kind::exact) prompt = prefill_label(prefill);
  over_ranks = over_ranks || session.over_ranks();
}

void AttentionStatement::add(const AttentionStatement& other) {
  for (const auto& [method, count] : other.methods) methods[method] += count;
  attended += other.attended;
  steps += other.steps;
  over_ranks = over_ranks || other.over_ranks;
  if (other.mass) {
    const auto before = static_cast<double>(samples), more = static_cast<double>(other.samples);
    mass = before + more > 0 ? (mass.value_or(0) * before + *other.mass * more) / (before + more) : *other.mass;
  }
  samples += other.samples;
  predicted += other.predicted;
  if (prompt.empty()) prompt = other.prompt;
}

bool AttentionStatement::exact() const {
  if (!prompt.empty()) return false;
  if (over_ranks) return std::ranges::all_of(methods, [](const auto& each) { return each.first == "dense"; });
  return share() > every_position;
}

std::string AttentionStatement::text(bool named) const {
  const std::string by = methods_line(methods);
  if (exact()) return named && steps > 0 ? fmt::format("exact: {}", by) : "exact";
  const std::string read = prompt.empty() ? "" : fmt::format("; the prompt was read by {}", prompt);
  if (over_ranks) return fmt::format("approximate: {}{}", by, read);
  if (predicted.known()) {
    return fmt::format(
        "approximate: predicted output error {:.2g} (largest {:.2g} in layer {}), {:.1f}% of the attention mass "
        "attended{}{}",
        predicted.mean(), predicted.largest, predicted.largest_layer, predicted.attended_mass() * 100,
        named ? "; " + by : "", read);
  }
  std::string line = fmt::format("approximate: {:.1f}% of the positions attended to, by {}", share() * 100, by);
  if (mass) {
    line += fmt::format("; {:.1f}% of the attention mass caught in {} sampled steps of single layers", *mass * 100,
                        samples);
  } else if (measurable) {
    line += "; --audit measures what that catches";
  }
  return line + read;
}

std::string statement_json(const AttentionStatement& statement) {
  nlohmann::ordered_json json;
  json["schema"] = "hayloft.attended/1";
  json["attention"] = statement.text();
  json["exact"] = statement.exact();
  json["attended_share"] = nullptr;
  if (statement.exact()) {
    json["attended_share"] = 1.0;
  } else if (!statement.over_ranks) {
    json["attended_share"] = statement.share();
  }
  json["mass"] = statement.mass ? nlohmann::ordered_json(*statement.mass) : nlohmann::ordered_json();
  json["samples"] = statement.samples;
  if (statement.predicted.known()) {
    json["predicted_error"] = {{"mean", statement.predicted.mean()},
                               {"largest", statement.predicted.largest},
                               {"largest_layer", statement.predicted.largest_layer},
                               {"attended_mass", statement.predicted.attended_mass()}};
  }
  json["steps"] = statement.steps;
  json["methods"] = statement.methods;
  return json_document(json);
}

std::string attention_statement(double attended_share, const std::string& method, std::optional<double> mass) {
  if (attended_share > every_position) return "exact";
  std::string line =
      fmt::format("approximate: {:.1f}% of the positions attended to, by {}", attended_share * 100, method);
  if (mass) line += fmt::format("; {:.1f}% of the attention mass caught", *mass * 100);
  return line;
}

}  // namespace hayloft::runtime
