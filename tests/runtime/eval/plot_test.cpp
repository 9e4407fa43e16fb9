#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "runtime/eval/attention_chart.h"
#include "runtime/eval/interval.h"
#include "runtime/eval/plot/heatmap.h"
#include "runtime/eval/plot/marks.h"
#include "runtime/eval/plot/scatter.h"

// Tests what every picture keeps to: all of its texts stand in its frame, none over another; intervals; colours and
// marks.
namespace hayloft::runtime::eval {
namespace {

struct Frame {
  double width = 0, height = 0;
};

Frame frame_of(const std::string& svg) {
  const auto at = svg.find("viewBox=\"0 0 ");
  Frame size;
  EXPECT_EQ(std::sscanf(svg.c_str() + at, "viewBox=\"0 0 %lf %lf\"", &size.width, &size.height), 2);
  return size;
}

void expect_legible(const std::string& svg, const std::vector<TextBox>& texts) {
  const Frame frame = frame_of(svg);
  ASSERT_FALSE(texts.empty());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const TextBox& a = texts[i];
    EXPECT_TRUE(a.left >= 0 && a.top >= 0 && a.right <= frame.width && a.bottom <= frame.height)
        << "'" << a.text << "' is out of the frame";
    for (std::size_t j = 0; j < i; ++j) {
      const TextBox& b = texts[j];
      EXPECT_FALSE(a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
          << "'" << a.text << "' over '" << b.text << "'";
    }
  }
}

Scatter scatter_of(int panels, int members) {
  Scatter scatter{"Quality against bytes moved",
                  "a model of some name, cpu, seed 42",
                  "bytes read per token",
                  "-log10 KL(dense || method)",
                  {}};
  for (int p = 0; p < panels; ++p) {
    ScatterPanel panel{fmt::format("{}k tokens", 4 << p), {}};
    for (const char* family : {"dense", "sparq", "ann"}) {
      for (int i = 0; i < members; ++i) {
        const double quality = 90 + i - 3.0 * p;
        panel.points.push_back({fmt::format("{} IVF1024,SQ8 rerank={} k=128", family, i), std::exp2(10 + 2 * i),
                                quality, family, Interval{quality - 12, quality + 2}});
      }
    }
    scatter.panels.push_back(std::move(panel));
  }
  return scatter;
}

TEST(Plots, NoTextStandsOverAnotherOrOutOfTheFrame) {
  std::vector<TextBox> texts;
  for (const int panels : {1, 2, 5}) {
    const std::string svg = render_scatter(scatter_of(panels, 6), &texts);
    expect_legible(svg, texts);
  }
  for (const std::size_t columns : {1u, 2u, 9u, 40u}) {
    for (const std::size_t rows : {1u, 11u, 101u}) {
      SCOPED_TRACE(fmt::format("{} by {}", columns, rows));
      Heatmap heatmap{"Needle in a haystack",
                      "needle-model, cpu, seed 1",
                      "context length (tokens)",
                      "needle depth",
                      "needles found",
                      {},
                      {},
                      {}};
      for (std::size_t i = 0; i < columns; ++i) heatmap.columns.push_back(fmt::format("{}k", 4 << (i % 9)));
      for (std::size_t i = 0; i < rows; ++i) heatmap.rows.push_back(fmt::format("{}%", i));
      for (const char* name : {"dense", "sparq r=16 k=128", "window k=128", "topk k=32", "ann IVF1024,PQ16"}) {
        std::vector<std::optional<double>> values(rows * columns, 1.0);
        values.back() = columns > 2 ? 0.5 : 0.0;
        heatmap.panels.push_back({name, std::vector<std::string>(columns, "11/11"), values});
      }
      const std::string svg = render_heatmap(heatmap, &texts);
      expect_legible(svg, texts);
    }
  }
}

AttentionReport report_of(int layers) {
  AttentionReport report;
  report.steps = 64;
  report.tokens = 5300;
  for (int i = 0; i < layers; ++i) {
    LayerAttention& layer = report.layers[i];
    for (const double value : {1.5 + i, 2.5 + i}) {
      layer.entropy.add(value);
      layer.kurtosis.add(3 * value);
    }
    for (const std::int64_t k : {16, 64, 256, 1024}) {
      layer.top_mass[k].add(0.5);
      layer.positions_again[k].add(0.66);
      for (const int r : {8, 16, 32}) layer.agreement[{r, k}].add(0.8 - 1.0 / r);
    }
    for (const int r : {8, 16, 32}) {
      layer.columns_again[r].add(0.7);
      for (const int slots : {8, 16, 24, 32, 48}) layer.columns_held[{r, slots}].add(slots / 64.0);
    }
  }
  return report;
}

TEST(Plots, AttentionStatisticsAreDrawnForAnyNumberOfLayers) {
  for (const int layers : {1, 2, 30, 80}) {
    SCOPED_TRACE(layers);
    std::vector<TextBox> texts;
    const LineChart chart = attention_chart(report_of(layers));
    EXPECT_EQ(chart.panels.size(), 6u);
    const std::string svg = render_lines(chart, &texts);
    expect_legible(svg, texts);
  }
  AttentionReport one_step = report_of(3);  // in which nothing can have been chosen again
  for (auto& [layer, attention] : one_step.layers) {
    attention.columns_again.clear();
    attention.positions_again.clear();
    attention.columns_held.clear();
  }
  EXPECT_EQ(attention_chart(one_step).panels.size(), 4u);
}

TEST(Plots, AMeanHasABandFromTheLeastToTheMostThatWasMeasured) {
  const LineChart chart = attention_chart(report_of(2));
  const LinePoint& point = chart.panels[0].series[0].points[1];
  EXPECT_EQ(point.x, 1);
  EXPECT_EQ(point.y, 3);
  ASSERT_TRUE(point.range);
  EXPECT_EQ(point.range->low, 2.5);
  EXPECT_EQ(point.range->high, 3.5);
}

TEST(Styles, AFamilyHasAColourAndEachOfItsMembersAMark) {
  const std::vector<SeriesStyle> styles = style_series(
      {{"sparq r=8", "sparq"}, {"dense", "dense"}, {"sparq r=16", "sparq"}, {"sparq r=8", "sparq"}, {"alone", ""}});
  ASSERT_EQ(styles.size(), 4u);
  EXPECT_EQ(styles[0].series, "sparq r=8");
  EXPECT_EQ(styles[1].series, "sparq r=16") << "families stand together";
  EXPECT_EQ(styles[0].colour, styles[1].colour);
  EXPECT_NE(styles[0].mark, styles[1].mark);
  std::set<std::pair<std::size_t, std::size_t>> looks;
  for (const SeriesStyle& style : styles) looks.emplace(style.colour, style.mark);
  EXPECT_EQ(looks.size(), 4u);
}

// Computed apart, by the formula's lower and upper root.
TEST(Intervals, WilsonsAreTheRootsOfItsEquation) {
  const auto near = [](const Interval& interval, double low, double high) {
    EXPECT_NEAR(interval.low, low, 1e-6);
    EXPECT_NEAR(interval.high, high, 1e-6);
  };
  near(wilson_interval(1.0, 20), 0.8388748, 1.0);
  near(wilson_interval(0.0, 11), 0.0, 0.2588330);
  near(wilson_interval(0.5, 8), 0.2152161, 0.7847839);
  near(wilson_interval(0.95, 20), 0.7638688, 0.9911186);
}

// For normally distributed values the bootstrap's interval is the mean's +- 1.96 s / sqrt(n), up to its 2,000 draws and
// the n values: a tenth of the width.
TEST(Intervals, TheBootstrapsIsThatOfTheMean) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal(10, 2);
  std::vector<double> values(400);
  for (double& value : values) value = normal(random);
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / 400;
  double square = 0;
  for (const double value : values) square += (value - mean) * (value - mean);
  const double half = 1.96 * std::sqrt(square / 399 / 400);
  const Interval interval = bootstrap_interval(values);
  EXPECT_NEAR(interval.low, mean - half, 0.2 * half);
  EXPECT_NEAR(interval.high, mean + half, 0.2 * half);
  const Interval again = bootstrap_interval(values);
  EXPECT_EQ(interval.low, again.low);
  EXPECT_EQ(bootstrap_interval(std::vector<double>{4.0}).high, 4);
  EXPECT_EQ(share_interval(std::vector<double>{1, 0, 1, 1}).high, wilson_interval(0.75, 4).high);
  EXPECT_EQ(share_interval(std::vector<double>{1, 0.5, 1, 1}).high, 1);
}

}  // namespace
}  // namespace hayloft::runtime::eval
