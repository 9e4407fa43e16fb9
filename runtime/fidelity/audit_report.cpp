#include "runtime/fidelity/audit_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "offload/text/json_text.h"
#include "offload/text/text_table.h"

namespace hayloft::runtime {
namespace {

struct Head {
  int layer;
  std::size_t head;
  const AuditCell* cell;
};

// By layer, those that were measured.
std::vector<Head> heads_of(const AuditReport& report) {
  std::vector<Head> all;
  for (const auto& [layer, heads] : report.layers) {
    for (std::size_t head = 0; head < heads.size(); ++head) all.push_back({layer, head, &heads[head]});
  }
  return all;
}

// Over heads, of each its mean and its worst sample.
struct Summary {
  double sum = 0;
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
  int heads = 0;

  void add(double mean_of_head, double worst) {
    sum += mean_of_head;
    least = std::min(least, worst);
    most = std::max(most, worst);
    ++heads;
  }
  double mean() const { return sum / heads; }
};

nlohmann::ordered_json stats_json(const RunningStats& stats, double worst) {
  return {{"mean", stats.mean()}, {"worst", worst}};
}

}  // namespace

void AuditReport::add(const StepFidelity& fidelity) {
  std::vector<AuditCell>& heads = layers[fidelity.layer];
  heads.resize(fidelity.recall.size());
  const std::size_t group = fidelity.mass.size() / heads.size();
  for (std::size_t head = 0; head < heads.size(); ++head) {
    AuditCell& cell = heads[head];
    ++cell.samples;
    cell.recall.add(fidelity.recall[head]);
    for (std::size_t h = head * group; h < (head + 1) * group; ++h) {
      cell.mass.add(fidelity.mass[h]);
      cell.error.add(fidelity.error[h]);
    }
  }
  k[fidelity.layer] = fidelity.k;
  ++measured;
}

double AuditReport::mass() const {
  RunningStats heads;
  for (const Head& head : heads_of(*this)) heads.add(head.cell->mass.mean());
  return heads.mean();
}

double AuditReport::cost() const {
  return decode_seconds > 0 ? (copy_seconds + measure_seconds) / decode_seconds : 0;
}

std::string audit_summary(const AuditReport& report) {
  std::string text =
      fmt::format("audit: {} of {} steps x layers measured against exact attention", report.measured, report.calls);
  if (report.dropped > 0) text += fmt::format(", {} dropped for want of time", report.dropped);
  if (report.measured == 0) return text + "; a higher --audit RATE takes more\n";
  text += fmt::format(", {:.1f}% of the decoding time\n", report.cost() * 100);
  Summary recall, mass, error;
  for (const Head& head : heads_of(report)) {
    recall.add(head.cell->recall.mean(), head.cell->recall.min);
    mass.add(head.cell->mass.mean(), head.cell->mass.min);
    error.add(head.cell->error.mean(), head.cell->error.max);
  }
  return text + fmt::format(
                    "audit: {} heads: mass caught {:.4f} (worst {:.4f}), recall {:.3f} (worst {:.3f}), output error "
                    "{:.2e} (worst {:.2e})\n",
                    mass.heads, mass.mean(), mass.least, recall.mean(), recall.least, error.mean(), error.most);
}

std::string audit_table(const AuditReport& report, std::size_t most_rows) {
  std::vector<Head> heads = heads_of(report);
  if (heads.empty()) return "";
  const std::size_t all = heads.size();
  if (all > most_rows) {
    std::stable_sort(heads.begin(), heads.end(),
                     [](const Head& a, const Head& b) { return a.cell->mass.mean() < b.cell->mass.mean(); });
    heads.resize(most_rows);
  }
  TextTable table{
      {"layer", "head", "samples", "k", "recall", "worst", "mass caught", "worst", "output error", "worst"}};
  for (const auto& [layer, head, cell] : heads) {
    table.push_back({fmt::format("{}", layer), fmt::format("{}", head), fmt::format("{}", cell->samples),
                     fmt::format("{}", report.k.at(layer)), fmt::format("{:.3f}", cell->recall.mean()),
                     fmt::format("{:.3f}", cell->recall.min), fmt::format("{:.4f}", cell->mass.mean()),
                     fmt::format("{:.4f}", cell->mass.min), fmt::format("{:.2e}", cell->error.mean()),
                     fmt::format("{:.2e}", cell->error.max)});
  }
  std::string text = aligned(table);
  if (all > most_rows) {
    text += fmt::format("the {} of {} heads that catch least; --audit-json FILE has all\n", most_rows, all);
  }
  return text;
}

std::string audit_warning(const AuditReport& report, double least) {
  int low = 0;
  int all = 0;
  int worst_layer = 0;
  std::size_t worst_head = 0;
  double worst = 1;
  for (const auto& [layer, heads] : report.layers) {
    for (std::size_t head = 0; head < heads.size(); ++head) {
      ++all;
      const double mass = heads[head].mass.mean();
      if (mass >= least) continue;
      ++low;
      if (mass >= worst) continue;
      worst = mass;
      worst_layer = layer;
      worst_head = head;
    }
  }
  if (low == 0) return {};
  return fmt::format(
      "audit: {} of {} heads catch less than {:.0f}% of the attention mass, head {} of layer {} only {:.1f}%: a larger "
      "--attn-k, or --fidelity {:g}%, catches more\n",
      low, all, least * 100, worst_head, worst_layer, worst * 100, least * 100);
}

std::string audit_json(const AuditReport& report) {
  nlohmann::ordered_json json;
  json["schema"] = "hayloft.audit/1";
  json["calls"] = report.calls;
  json["chosen"] = report.chosen;
  json["measured"] = report.measured;
  json["dropped"] = report.dropped;
  json["decode_seconds"] = report.decode_seconds;
  json["copy_seconds"] = report.copy_seconds;
  json["measure_seconds"] = report.measure_seconds;
  if (!report.methods.empty()) json["methods"] = report.methods;
  if (report.kept) {
    const FidelityReport& kept = *report.kept;
    nlohmann::ordered_json& object = json["fidelity"];
    object = {{"asked", kept.asked},
              {"samples", kept.samples},
              {"selecting", kept.measured.count},
              {"layers", kept.layers},
              {"exact_layers", kept.exact_layers}};
    object["mass"] = nullptr;
    if (kept.measured.count > 0) object["mass"] = stats_json(kept.measured, kept.measured.min);
  }
  json["rows"] = nlohmann::ordered_json::array();
  for (const auto& [layer, heads] : report.layers) {
    for (std::size_t head = 0; head < heads.size(); ++head) {
      const AuditCell& cell = heads[head];
      json["rows"].push_back({{"layer", layer},
                              {"head", head},
                              {"samples", cell.samples},
                              {"k", report.k.at(layer)},
                              {"recall", stats_json(cell.recall, cell.recall.min)},
                              {"mass", stats_json(cell.mass, cell.mass.min)},
                              {"error", stats_json(cell.error, cell.error.max)}});
    }
  }
  return json_document(json);
}

}  // namespace hayloft::runtime
