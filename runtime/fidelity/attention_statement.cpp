#include "runtime/fidelity/attention_statement.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "offload/text/json_text.h"

namespace hayloft::runtime {
namespace {

// Says what was rounded: "; inputs to quantised weights rounded to 8 bits"; empty where nothing was.
std::string rounded(bool int8_products, offload::RowFormat rows) {
  std::string text = int8_products ? "; inputs to quantised weights rounded to 8 bits" : "";
  if (rows != offload::RowFormat::f16) text += fmt::format("; keys and values kept in {} bits", offload::bits_of(rows));
  return text;
}

// "dense in 120 steps x layers, sparq r=16 k=128 in 3480".
std::string methods_line(const std::map<std::string, std::int64_t>& methods) {
  std::string line;
  for (const auto& [method, steps] : methods) {
    line +=
        line.empty() ? fmt::format("{} in {} steps x layers", method, steps) : fmt::format(", {} in {}", method, steps);
  }
  return line;
}

// Steps x layers by other methods than dense.
std::int64_t approximate_steps(const std::map<std::string, std::int64_t>& methods) {
  std::int64_t steps = 0;
  for (const auto& [method, count] : methods) steps += method == "dense" ? 0 : count;
  return steps;
}

std::string read_by(const std::string& prompt) {
  return prompt.empty() ? "" : fmt::format("; the prompt was read by {}", prompt);
}

}  // namespace

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
  add_reading(other.prompt);
  int8_products = int8_products || other.int8_products;
  rows = std::max(rows, other.rows);
}

void AttentionStatement::add_reading(const std::string& way) {
  constexpr std::string_view sparse = "sparse: ";  // with figures, which differ from one question to the next
  if (way.empty() || prompt.find(way.starts_with(sparse) ? sparse : way) != std::string::npos) return;
  prompt += (prompt.empty() ? "" : ", and by ") + way;
}

bool AttentionStatement::exact() const {
  return !int8_products && rows == offload::RowFormat::f16 && attends_to_all();
}

bool AttentionStatement::attends_to_all() const {
  if (!prompt.empty()) return false;
  if (over_ranks) return std::ranges::all_of(methods, [](const auto& each) { return each.first == "dense"; });
  return share() > every_position;
}

std::string AttentionStatement::text(bool named) const {
  const std::string by = methods_line(methods);
  if (exact()) return named && !by.empty() ? fmt::format("exact: {}", by) : "exact";
  const std::string roundings = rounded(int8_products, rows);
  if (attends_to_all()) {
    return fmt::format("approximate: every position attended to{}{}", named && !by.empty() ? ", " + by : "", roundings);
  }
  const std::string read = read_by(prompt) + roundings;
  if (by.empty()) return "approximate: " + read.substr(2);  // behind a prompt, before the first step
  if (over_ranks) return fmt::format("approximate: {}{}", by, read);
  if (predicted.known() && 2 * predicted.steps > approximate_steps(methods)) {
    return fmt::format(
        "approximate: predicted output error {:.2g} (largest {:.2g} in layer {}), {:.1f}% of the attention mass "
        "attended{}{}",
        predicted.mean(), predicted.largest, predicted.largest_layer, predicted.attended_mass() * 100,
        named ? "; " + by : "", read);
  }
  std::string line = fmt::format("approximate: {:.1f}% of the positions attended to, by {}", share() * 100, by);
  if (predicted.known()) {
    line += fmt::format("; predicted output error {:.2g} (largest {:.2g} in layer {}) in {} of these steps",
                        predicted.mean(), predicted.largest, predicted.largest_layer, predicted.steps);
  }
  if (mass) {
    line += fmt::format("; {:.1f}% of the attention mass caught in {} sampled steps of single layers", *mass * 100,
                        samples);
  } else if (measurable && share() <= every_position) {
    line += "; --audit measures what that catches";
  }
  return line + read;
}

nlohmann::ordered_json predicted_error_json(const PredictedError& predicted) {
  return {{"mean", predicted.mean()},
          {"largest", predicted.largest},
          {"largest_layer", predicted.largest_layer},
          {"attended_mass", predicted.attended_mass()}};
}

nlohmann::ordered_json statement_members(const AttentionStatement& statement) {
  nlohmann::ordered_json json{
      {"attention", statement.text()}, {"exact", statement.exact()}, {"methods", statement.methods}};
  if (statement.attends_to_all()) {
    json["attended_share"] = 1.0;
  } else if (!statement.over_ranks) {
    json["attended_share"] = statement.share();
  }
  if (statement.int8_products) json["products"] = gpu::name(gpu::Products::int8);
  if (statement.rows != offload::RowFormat::f16) json["rows"] = offload::name(statement.rows);
  if (statement.mass) json["mass"] = *statement.mass;
  if (statement.predicted.known()) json["predicted_error"] = predicted_error_json(statement.predicted);
  return json;
}

std::string statement_json(const AttentionStatement& statement) {
  nlohmann::ordered_json json{{"schema", "hayloft.attended/1"}};
  json.update(statement_members(statement));
  for (const char* name : {"attended_share", "mass"}) {
    if (!json.contains(name)) json[name] = nullptr;
  }
  json["samples"] = statement.samples;
  json["steps"] = statement.steps;
  return json_document(json);
}

std::string attention_statement(double attended_share, const std::string& method, std::optional<double> mass,
                                gpu::Products products, const std::string& prompt, offload::RowFormat rows) {
  const std::string behind = read_by(prompt) + rounded(products == gpu::Products::int8, rows);
  if (attended_share > every_position) {
    return behind.empty() ? "exact" : "approximate: every position attended to" + behind;
  }
  std::string line =
      fmt::format("approximate: {:.1f}% of the positions attended to, by {}", attended_share * 100, method);
  if (mass) line += fmt::format("; {:.1f}% of the attention mass caught", *mass * 100);
  return line + behind;
}

}  // namespace hayloft::runtime
