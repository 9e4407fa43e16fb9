#include "runtime/fidelity/audit_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace hayloft::runtime {
namespace {

// Two KV heads of two query heads each.
StepFidelity step(int layer, double low) {
  StepFidelity fidelity;
  fidelity.layer = layer;
  fidelity.k = 64;
  fidelity.recall = {1, low};
  fidelity.mass = {1, 0.98, low, 0.9};
  fidelity.error = {0.01, 0.03, 0.2, 0.1};
  return fidelity;
}

AuditReport report() {
  AuditReport report;
  report.add(step(3, 0.5));
  report.add(step(3, 0.7));
  report.add(step(8, 0.95));
  report.calls = 500;
  report.chosen = 5;
  report.dropped = 2;
  report.decode_seconds = 10;
  report.copy_seconds = 0.05;
  report.measure_seconds = 0.1;
  return report;
}

TEST(AuditReport, GivesMeansAndWorstValuesPerLayerAndHead) {
  const auto json = nlohmann::json::parse(audit_json(report()));
  EXPECT_EQ(json["schema"], "hayloft.audit/1");
  EXPECT_EQ(json["measured"], 3);
  EXPECT_EQ(json["dropped"], 2);
  ASSERT_EQ(json["rows"].size(), 4u);
  const auto& row = json["rows"][1];
  EXPECT_EQ(row["layer"], 3);
  EXPECT_EQ(row["head"], 1);
  EXPECT_EQ(row["samples"], 2);
  EXPECT_EQ(row["k"], 64);
  EXPECT_DOUBLE_EQ(row["recall"]["mean"], 0.6);
  EXPECT_DOUBLE_EQ(row["recall"]["worst"], 0.5);
  EXPECT_DOUBLE_EQ(row["mass"]["mean"], (0.5 + 0.9 + 0.7 + 0.9) / 4);
  EXPECT_DOUBLE_EQ(row["mass"]["worst"], 0.5);
  EXPECT_DOUBLE_EQ(row["error"]["mean"], 0.15);
  EXPECT_DOUBLE_EQ(row["error"]["worst"], 0.2);
}

TEST(AuditReport, SaysInItsSummaryHowMuchWasSampledAndWhatWasCaught) {
  const std::string summary = audit_summary(report());
  EXPECT_EQ(summary.find("audit: 3 of 500 steps x layers measured against exact attention, 2 dropped"), 0u) << summary;
  EXPECT_NE(summary.find("1.5% of the decoding time"), std::string::npos) << summary;
  // The heads' means: 0.99 and 0.75 in layer 3, 0.99 and 0.925 in layer 8, 0.91375 in all.
  EXPECT_NE(summary.find("\naudit: 4 heads: mass caught 0.9137 (worst 0.5000), recall 0.887 (worst 0.500)"),
            std::string::npos)
      << summary;
  EXPECT_EQ(std::count(summary.begin(), summary.end(), '\n'), 2) << summary;
  EXPECT_DOUBLE_EQ(report().mass(), 0.91375);
  EXPECT_EQ(AuditReport().mass(), 0);
}

TEST(AuditReport, HasALinePerHeadAndNoMoreThanTenOfThem) {
  const std::string few = audit_table(report());
  EXPECT_EQ(std::count(few.begin(), few.end(), '\n'), 6) << few;  // heading, rule and four heads
  AuditReport many;
  for (int layer = 0; layer < 6; ++layer) many.add(step(layer, 0.5 + 0.05 * layer));
  const std::string table = audit_table(many);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 13) << table;
  EXPECT_NE(table.find("\nthe 10 of 12 heads that catch least; --audit-json FILE has all\n"), std::string::npos);
  const std::string first = table.substr(table.find('\n', table.find('\n') + 1) + 1);
  EXPECT_EQ(first.substr(first.find_first_not_of(' '), 1), "0") << "layer 0 catches least\n" << table;
  EXPECT_EQ(audit_table(many, 12).find("catch least"), std::string::npos);
}

TEST(AuditReport, HasALineWhereNothingWasSampled) {
  AuditReport nothing;
  nothing.calls = 3;
  EXPECT_EQ(audit_summary(nothing),
            "audit: 0 of 3 steps x layers measured against exact attention; a higher --audit RATE takes more\n");
  EXPECT_EQ(audit_table(nothing), "");
  EXPECT_EQ(audit_warning(nothing), "");
}

TEST(AuditReport, WarnsOfTheHeadThatCatchesLeast) {
  const std::string warning = audit_warning(report());
  EXPECT_EQ(warning.find("audit: 1 of 4 heads catch less than 90% of the attention mass, head 1 of layer 3 only 75.0%"),
            0u)
      << warning;
  EXPECT_EQ(audit_warning(report(), 0.7), "");
}

}  // namespace
}  // namespace hayloft::runtime
