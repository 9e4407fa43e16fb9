#include "runtime/eval/plot/heatmap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "runtime/eval/needle/report.h"
#include "tests/support/refusal.h"

// The needle report: its picture, its table and its JSON.
namespace hayloft::runtime::eval {
namespace {

Heatmap small_heatmap() {
  Heatmap heatmap{"title", "subtitle", "x", "y", "found", {"64k", "1M"}, {"0%", "50%", "100%"}, {}};
  heatmap.panels.push_back({"one", {"2/3", "0/2"}, {1.0, 0.0, 1.0, 0.0, 0.0, std::nullopt}});
  return heatmap;
}

// Returns how many shapes of an SVG are filled with a colour.
std::ptrdiff_t filled_with(const std::string& svg, const std::string& colour) {
  const std::regex fill("fill=\"" + colour + "\"");
  return std::distance(std::sregex_iterator(svg.begin(), svg.end(), fill), std::sregex_iterator());
}
const std::string found_colour = "#1f6f6b";
const std::string missed_colour = "#f6c7a9";

TEST(Heatmap, EveryCellIsFilledWithTheColourOfItsValue) {
  const std::string svg = render_heatmap(small_heatmap());
  EXPECT_EQ(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\"", 0), 0u);
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
  EXPECT_EQ(filled_with(svg, found_colour), 2 + 1);   // and one in the legend
  EXPECT_EQ(filled_with(svg, missed_colour), 3 + 1);  // the sixth cell has no value
}

bool says(const std::vector<TextBox>& texts, const std::string& text) {
  return std::any_of(texts.begin(), texts.end(), [&](const TextBox& box) { return box.text == text; });
}

TEST(Heatmap, TheLegendIsAScaleUnlessEveryCellIsYesOrNo) {
  Heatmap heatmap = small_heatmap();
  heatmap.yes = "found";
  heatmap.no = "missed";
  std::vector<TextBox> texts;
  render_heatmap(heatmap, &texts);
  EXPECT_TRUE(says(texts, "found") && says(texts, "missed"));
  heatmap.panels[0].values[2] = 0.5;
  render_heatmap(heatmap, &texts);
  EXPECT_FALSE(says(texts, "missed"));
}

TEST(Heatmap, TextsStandInThePictureAsTextWhateverIsInThem) {
  Heatmap heatmap = small_heatmap();
  heatmap.title = "a <b> & c\x01\xff";
  const std::string svg = render_heatmap(heatmap);
  EXPECT_NE(svg.find(">a &lt;b> &amp; c \xef\xbf\xbd</text>"), std::string::npos) << svg;
}

TEST(Heatmap, ManyRowsColumnsAndPanelsStillMakeAPicture) {
  Heatmap heatmap = small_heatmap();
  heatmap.rows.assign(1001, "row");
  heatmap.columns.assign(40, "1M");
  heatmap.panels.assign(9, {"panel", {}, std::vector<std::optional<double>>(1001 * 40, 0.5)});
  EXPECT_GT(render_heatmap(heatmap).size(), 1000u);
}

TEST(Heatmap, APictureIsNamedAsWhatItIs) {
  check_picture("a/b.svg");
  check_picture("b.SVG");
  for (const char* other : {"b.png", "b.pdf", "svg"}) {
    EXPECT_TRUE(test::refuses([&] { check_picture(other); }, {other, ".svg", "rsvg-convert"}));
  }
}

MethodOptions named(const std::string& name) {
  MethodOptions options;
  options.name = name;
  return options;
}

EvalRow row(const MethodOptions& attn, std::int64_t tokens, double depth, bool hit) {
  EvalRow row;
  row.attn = attn;
  row.k = attn.name == "dense" ? 0 : 128;
  row.window = attn.name == "sparq" ? 32 : 0;
  row.ctx_size = tokens;
  row.depth = depth;
  row.expected = {"123456"};
  row.prediction = hit ? "123456" : "9\xe2\x82";  // ends in the middle of a character
  row.score = hit;
  row.prefill_seconds = 2.5;
  row.ms_per_token = 1.25;
  row.link_bytes_per_token = 1 << 20;
  row.near_bytes_per_token = 512;
  row.attended_share = attn.name == "dense" ? 1 : 0.0625;
  row.block_tokens = 4096;
  if (attn.name != "dense") row.recall = 0.5;
  return row;
}

NeedleReport needle_report() {
  NeedleReport report{"needle-model", "cpu", 7, {}};
  for (const char* name : {"dense", "sparq"}) {
    for (const std::int64_t tokens : {1 << 20, 1 << 16}) {
      for (const double depth : {0.0, 100.0}) {
        report.rows.push_back(row(named(name), tokens, depth, name == std::string("dense") || depth == 0));
      }
    }
  }
  return report;
}

TEST(NeedleReport, TheJsonHasTheFieldsOfItsSchemaInOrder) {
  const auto json = nlohmann::ordered_json::parse(needle_json(needle_report()));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"schema", "model", "device", "seed", "prefill", "columns", "row_format",
                                            "weights", "device_memory", "ranks", "complete", "rows"}));
  EXPECT_EQ(json["schema"], "hayloft.needle/1");
  EXPECT_EQ(json["seed"], 7);
  ASSERT_EQ(json["rows"].size(), 8u);
  keys.clear();
  for (const auto& [key, value] : json["rows"][0].items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"attn",
                                            "method",
                                            "r",
                                            "k",
                                            "window",
                                            "tokens",
                                            "depth",
                                            "expected",
                                            "answer",
                                            "hit",
                                            "prefill_seconds",
                                            "prepare_seconds",
                                            "state_bytes",
                                            "decode_ms_per_token",
                                            "link_bytes_per_token",
                                            "near_bytes_per_token",
                                            "positions_scored_per_token",
                                            "recall",
                                            "attended_share",
                                            "attention",
                                            "block_tokens",
                                            "network_messages_per_token",
                                            "network_sent_bytes_per_token",
                                            "network_received_bytes_per_token"}));
}

TEST(NeedleReport, TheJsonIsNullWhereAFieldMakesNoSense) {
  const auto json = nlohmann::json::parse(needle_json(needle_report()));
  const auto& dense = json["rows"][0];
  for (const char* key : {"r", "k", "window", "recall"}) EXPECT_TRUE(dense[key].is_null()) << key;
  const auto& sparq = json["rows"][4];
  EXPECT_EQ(sparq["r"], 16);
  EXPECT_EQ(sparq["k"], 128);
  EXPECT_EQ(sparq["window"], 32);
  EXPECT_EQ(sparq["recall"], 0.5);
  const auto topk = nlohmann::json::parse(needle_json({"m", "cpu", 1, {row(named("topk"), 4096, 50, true)}}));
  EXPECT_TRUE(topk["rows"][0]["r"].is_null());
}

TEST(NeedleReport, AnAnswerThatIsNotWholeUtf8StillMakesValidJson) {
  const auto json = nlohmann::json::parse(needle_json(needle_report()));
  EXPECT_EQ(json["rows"][5]["answer"], "9\xef\xbf\xbd");
}

TEST(NeedleReport, TheSummaryHasOneLinePerMethodAndContextInTheOrderAsked) {
  const std::string summary = needle_summary(needle_report());
  std::vector<std::string> lines;
  for (std::size_t at = 0, end = 0; (end = summary.find('\n', at)) != std::string::npos; at = end + 1) {
    lines.push_back(std::regex_replace(summary.substr(at, end - at), std::regex(" {2,}"), "|"));
  }
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0], "attention|context|found|attended|recall|prefill s|decode ms/token|link/token|near/token");
  EXPECT_EQ(lines[2], "dense|1M|2/2|100.0%|-|2.5|1.25|1.0 MiB|512 B");
  EXPECT_EQ(lines[5], "sparq r=16 k=128|64k|1/2|6.2%|0.500|2.5|1.25|1.0 MiB|512 B");
}

TEST(NeedleReport, AMethodThatAttendedToMostOfTheContextIsMarked) {
  NeedleReport report = needle_report();
  report.rows[4].attended_share = report.rows[5].attended_share = 0.75;  // sparq at 1M
  const std::string summary = needle_summary(report);
  EXPECT_NE(summary.find("sparq r=16 k=128 *"), std::string::npos) << summary;
  EXPECT_NE(summary.find("* sparq r=16 k=128 at 1M attended to 75.0% of the context"), std::string::npos) << summary;
  EXPECT_EQ(summary.find("at 64k"), std::string::npos) << summary;
  EXPECT_EQ(summary.find("dense *"), std::string::npos) << "it is meant to";
}

TEST(NeedleReport, TheHeatmapSharesOutHitsByMethodDepthAndContext) {
  NeedleReport report = needle_report();
  report.rows.push_back(row(named("sparq"), 1 << 20, 100.0, true));  // a second needle at this depth
  const Heatmap heatmap = needle_heatmap(report);
  EXPECT_EQ(heatmap.columns, (std::vector<std::string>{"64k", "1M"}));
  EXPECT_EQ(heatmap.rows, (std::vector<std::string>{"0%", "100%"}));
  ASSERT_EQ(heatmap.panels.size(), 2u);
  EXPECT_EQ(heatmap.panels[1].title, "sparq r=16 k=128");
  EXPECT_EQ(heatmap.panels[1].values, (std::vector<std::optional<double>>{1.0, 1.0, 0.0, 0.5}));
  EXPECT_EQ(heatmap.panels[1].notes, (std::vector<std::string>{"1/2", "2/3"}));
}

TEST(NeedleReport, MethodsThatDifferHaveDifferentLabels) {
  MethodOptions sparq = named("sparq");
  EXPECT_EQ(method_label(sparq), "sparq r=16 k=128");
  sparq.window = 0;
  EXPECT_EQ(method_label(sparq), "sparq r=16 k=128 w=0");
  EXPECT_EQ(method_label(parse_method("sparq:group=logits", {})), "sparq r=16 k=128 group=logits");
  MethodOptions faiss = named("topk");
  faiss.faiss = true;
  EXPECT_EQ(method_label(faiss), "topk k=128 faiss");
  MethodOptions window = named("window");
  EXPECT_EQ(method_label(window), "window k=128");
  window.window = 64;
  window.sinks = 0;
  EXPECT_EQ(method_label(window), "window w=64 s=0");
}

TEST(NeedleReport, AnAnswerOfSeveralLinesTakesOneLineOfTheTerminal) {
  EvalRow missed = row(named("dense"), 4096, 50, false);
  missed.prediction = "I do not\nknow \x1b[31m, and never have known";
  const std::string line = needle_line(missed);
  EXPECT_EQ(line.find_first_of("\n\x1b"), std::string::npos);
  EXPECT_NE(line.find("I do not know"), std::string::npos);
}

}  // namespace
}  // namespace hayloft::runtime::eval
