#include "runtime/eval/plot/lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "runtime/eval/plot/marks.h"

namespace hayloft::runtime::eval {
namespace {

constexpr double plot_height = 200, below_plot = 50;
constexpr double legend_line = 18;
constexpr double mark_room = 2 * mark_radius + 8;  // beside a name in the legend
constexpr double names_apart = 16;

struct Axes {
  bool logarithmic;
  double least_x, most_x;  // of log2 where logarithmic
  double least_y, most_y;

  double scaled(double x) const { return logarithmic ? std::log2(x) : x; }
  double x(double value) const { return (scaled(value) - least_x) / (most_x - least_x) * plot_width; }
  double y(double value) const { return (most_y - value) / (most_y - least_y) * plot_height; }
};

Axes axes_of(const LinePanel& panel) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Axes axes{panel.powers_of_two, infinity, -infinity, infinity, -infinity};
  for (const LineSeries& series : panel.series) {
    for (const LinePoint& point : series.points) {
      const Interval range = point.range.value_or(Interval{point.y, point.y});
      axes.least_x = std::min(axes.least_x, axes.scaled(point.x));
      axes.most_x = std::max(axes.most_x, axes.scaled(point.x));
      axes.least_y = std::min({axes.least_y, point.y, range.low});
      axes.most_y = std::max({axes.most_y, point.y, range.high});
    }
  }
  if (panel.y_range) {
    axes.least_y = panel.y_range->low;
    axes.most_y = panel.y_range->high;
  } else {
    const double room = std::max(0.05 * (axes.most_y - axes.least_y), 1e-3 * std::max(1.0, std::fabs(axes.most_y)));
    axes.least_y -= room;
    axes.most_y += room;
  }
  const double side = axes.most_x > axes.least_x ? 0.04 * (axes.most_x - axes.least_x) : 0.5;
  axes.least_x -= side;
  axes.most_x += side;
  return axes;
}

void draw_x_ticks(Canvas& canvas, const LinePanel& panel, const Axes& axes, double x, double y) {
  const double least = std::ceil(axes.least_x), most = std::floor(axes.most_x);
  double apart = axes.logarithmic ? std::max(1.0, std::ceil((most - least) / 7))
                                  : std::max(1.0, tick_distance(axes.most_x - axes.least_x));
  for (double at = std::ceil(least / apart) * apart; at <= most; at += apart) {
    const double tick = x + (at - axes.least_x) / (axes.most_x - axes.least_x) * plot_width;
    canvas.line({{tick, y + plot_height}, {tick, y + plot_height + 4}}, 1, faint_ink);
    canvas.text(tick, y + plot_height + 17, fmt::format("{:.0f}", (axes.logarithmic ? std::exp2(at) : at) + 0.0),
                text_size, Align::centre, ink);
  }
  canvas.text(x + plot_width / 2, y + plot_height + 36, panel.x_label, text_size, Align::centre, faint_ink);
}

struct LegendEntry {
  std::size_t series;
  double x, y;  // of the mark, from the legend's corner
};

// The names side by side, in as many lines as they take.
std::vector<LegendEntry> legend_of(const LinePanel& panel, int& lines) {
  std::vector<LegendEntry> entries;
  double x = 0;
  lines = 0;
  for (std::size_t i = 0; i < panel.series.size(); ++i) {
    if (panel.series[i].name.empty()) continue;
    const double width = mark_room + width_of(panel.series[i].name, text_size) + names_apart;
    if (lines == 0 || x + width > plot_width + names_apart) {
      x = 0;
      ++lines;
    }
    entries.push_back({i, x, (lines - 1) * legend_line});
    x += width;
  }
  return entries;
}

void draw_panel(Canvas& canvas, const LinePanel& panel, double x, double y) {
  const Axes axes = axes_of(panel);
  canvas.text(x, y - 12, panel.title, panel_title_size, Align::left, ink, true);
  draw_y_ticks(canvas, {x, y, plot_width, plot_height}, axes.least_y, axes.most_y);
  draw_x_ticks(canvas, panel, axes, x, y);
  canvas.upward_text(x - left_of_plot + 16, y + plot_height / 2, panel.y_label, text_size, faint_ink);
  const auto style_of = [](std::size_t i) { return SeriesStyle{"", "", i, i % 8}; };
  for (std::size_t i = 0; i < panel.series.size(); ++i) {
    const std::vector<LinePoint>& points = panel.series[i].points;
    std::vector<std::pair<double, double>> line, band;
    for (const LinePoint& point : points) line.emplace_back(x + axes.x(point.x), y + axes.y(point.y));
    const bool ranges = std::all_of(points.begin(), points.end(), [](const LinePoint& p) { return p.range; });
    if (ranges) {
      for (const LinePoint& p : points) band.emplace_back(x + axes.x(p.x), y + axes.y(p.range->high));
      for (auto p = points.rbegin(); p != points.rend(); ++p) {
        band.emplace_back(x + axes.x(p->x), y + axes.y(p->range->low));
      }
      canvas.polygon(band, series_colour(i), 0.15);
    }
    canvas.line(line, 1.5, series_colour(i));
    for (const auto& [at, height] : line) draw_mark(canvas, at, height, style_of(i));
  }
  int lines = 0;
  for (const LegendEntry& entry : legend_of(panel, lines)) {
    const double at = x + entry.x + mark_radius, middle = y + plot_height + below_plot + entry.y;
    draw_mark(canvas, at, middle, style_of(entry.series));
    canvas.text(x + entry.x + mark_room, middle + text_size * 0.36, panel.series[entry.series].name, text_size,
                Align::left, ink);
  }
}

}  // namespace

std::string render_lines(const LineChart& chart, std::vector<TextBox>* texts) {
  assert(!chart.panels.empty());
  const int panels = static_cast<int>(chart.panels.size());
  std::vector<double> tops;  // of the lines of panels
  double bottom = margin + header;
  for (int first = 0; first < panels; first += panels_per_line) {
    int most = 0;
    for (int i = first; i < std::min(panels, first + panels_per_line); ++i) {
      int lines = 0;
      legend_of(chart.panels[static_cast<std::size_t>(i)], lines);
      most = std::max(most, lines);
    }
    tops.push_back(bottom);
    bottom += above_plot + plot_height + below_plot + most * legend_line;
  }
  const double heading = std::max(width_of(chart.title, title_size, true), width_of(chart.subtitle, text_size));
  const double across = std::min(panels, panels_per_line) * (left_of_plot + plot_width);
  const double width = std::ceil(margin + std::max(across, heading) + margin), height = std::ceil(bottom + margin);

  Canvas canvas;
  canvas.rectangle(0, 0, width, height, paper);
  canvas.text(margin, margin + title_size, chart.title, title_size, Align::left, ink, true);
  canvas.text(margin, margin + title_size + 22, chart.subtitle, text_size, Align::left, faint_ink);
  for (int i = 0; i < panels; ++i) {
    draw_panel(canvas, chart.panels[static_cast<std::size_t>(i)],
               margin + left_of_plot + (i % panels_per_line) * (left_of_plot + plot_width),
               tops[static_cast<std::size_t>(i / panels_per_line)] + above_plot);
  }
  if (texts) *texts = canvas.texts();
  return canvas.svg(width, height);
}

}  // namespace hayloft::runtime::eval
