#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/eval/interval.h"
#include "runtime/eval/plot/canvas.h"

namespace hayloft::runtime::eval {

struct LinePoint {
  double x = 0;
  double y = 0;
  std::optional<Interval> range = {};  // of what was measured there: a band behind the line
};

struct LineSeries {
  std::string name;  // empty: the panel's only one, which needs none
  std::vector<LinePoint> points;
};

// A panel has axes of its own: whole numbers or powers of two from left to right.
struct LinePanel {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool powers_of_two = false;  // x on a logarithmic scale
  std::optional<Interval> y_range = {};
  std::vector<LineSeries> series;
};

struct LineChart {
  std::string title;
  std::string subtitle;
  std::vector<LinePanel> panels;
};

// Returns the picture as SVG, each panel with its legend below it. `texts`: as render_heatmap.
std::string render_lines(const LineChart& chart, std::vector<TextBox>* texts = nullptr);

}  // namespace hayloft::runtime::eval
