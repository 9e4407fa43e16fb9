#include "runtime/eval/plot/scatter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>

#include "offload/text/format.h"
#include "runtime/eval/plot/marks.h"

namespace hayloft::runtime::eval {
namespace {

constexpr double plot_height = 230, below_plot = 56;
constexpr double legend_gap = 46;
constexpr const char* front_name = "Pareto front";

struct Axes {
  double least_x, most_x;  // log2 of bytes
  double least_y, most_y;

  double x(double bytes) const { return (log_bytes(bytes) - least_x) / (most_x - least_x) * plot_width; }
  double y(double quality) const { return (most_y - quality) / (most_y - least_y) * plot_height; }
  static double log_bytes(double bytes) { return std::log2(std::max(1.0, bytes)); }
};

// The same for all panels, so that they can be compared.
Axes axes_of(const Scatter& scatter) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Axes axes{infinity, -infinity, infinity, -infinity};
  for (const ScatterPanel& panel : scatter.panels) {
    for (const ScatterPoint& point : panel.points) {
      axes.least_x = std::min(axes.least_x, Axes::log_bytes(point.bytes));
      axes.most_x = std::max(axes.most_x, Axes::log_bytes(point.bytes));
      const Interval likely = point.likely.value_or(Interval{point.quality, point.quality});
      axes.least_y = std::min({axes.least_y, point.quality, likely.low});
      axes.most_y = std::max({axes.most_y, point.quality, likely.high});
    }
  }
  axes.least_x = std::floor(axes.least_x - 0.5);
  axes.most_x = std::ceil(axes.most_x + 0.5);
  const double room = std::max(0.05 * (axes.most_y - axes.least_y), 1e-3 * std::max(1.0, std::fabs(axes.most_y)));
  axes.least_y -= room;
  axes.most_y += room;
  return axes;
}

std::vector<SeriesStyle> styles_of(const Scatter& scatter) {
  std::vector<std::pair<std::string, std::string>> series;
  for (const ScatterPanel& panel : scatter.panels) {
    for (const ScatterPoint& point : panel.points) series.emplace_back(point.series, point.family);
  }
  return style_series(series);
}

std::string x_name(const Scatter& scatter, double bytes) {
  if (scatter.whole == 0) return format_bytes(static_cast<std::uint64_t>(bytes));
  const double share = bytes / scatter.whole;
  return share < 1 ? fmt::format("1/{:.0f}", 1 / share) : fmt::format("{:.0f}", share);
}

void draw_axes(Canvas& canvas, const Scatter& scatter, const Axes& axes, double x, double y) {
  const double octaves = axes.most_x - axes.least_x;
  const double step = std::max(1.0, std::ceil(octaves / 5));
  for (double at = axes.least_x; at <= axes.most_x; at += step) {
    const double tick = x + axes.x(std::exp2(at));
    canvas.line({{tick, y}, {tick, y + plot_height}}, 1, grid_colour);
    canvas.text(tick, y + plot_height + 16, x_name(scatter, std::exp2(at)), text_size, Align::centre, ink);
  }
  draw_y_ticks(canvas, {x, y, plot_width, plot_height}, axes.least_y, axes.most_y);
  canvas.text(x + plot_width / 2, y + plot_height + 36, scatter.x_label, text_size, Align::centre, faint_ink);
  canvas.upward_text(x - left_of_plot + 16, y + plot_height / 2, scatter.y_label, text_size, faint_ink);
}

void draw_panel(Canvas& canvas, const Scatter& scatter, const Axes& axes, const std::vector<SeriesStyle>& styles,
                const ScatterPanel& panel, double x, double y) {
  canvas.text(x, y - 12, panel.title, panel_title_size, Align::left, ink, true);
  draw_axes(canvas, scatter, axes, x, y);
  std::vector<std::pair<double, double>> front;  // in steps: nobody has measured what lies between two points
  for (const std::size_t i : pareto_front(panel.points)) {
    const double at = x + axes.x(panel.points[i].bytes);
    if (!front.empty()) front.emplace_back(at, front.back().second);
    front.emplace_back(at, y + axes.y(panel.points[i].quality));
  }
  canvas.line(front, 1.5, faint_ink, true);
  for (const ScatterPoint& point : panel.points) {
    const auto style = std::find_if(styles.begin(), styles.end(),
                                    [&](const SeriesStyle& each) { return each.series == point.series; });
    const double at = x + axes.x(point.bytes);
    if (point.likely) {
      draw_error_bar(canvas, at, y + axes.y(point.likely->low), y + axes.y(point.likely->high),
                     series_colour(style->colour));
    }
    draw_mark(canvas, at, y + axes.y(point.quality), *style);
  }
}

}  // namespace

std::vector<std::size_t> pareto_front(const std::vector<ScatterPoint>& points) {
  std::vector<std::size_t> order(points.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return points[a].bytes != points[b].bytes ? points[a].bytes < points[b].bytes
                                              : points[a].quality > points[b].quality;
  });
  std::vector<std::size_t> front;
  for (const std::size_t i : order) {
    if (front.empty() || points[i].quality > points[front.back()].quality) front.push_back(i);
  }
  return front;
}

std::string render_scatter(const Scatter& scatter, std::vector<TextBox>* texts) {
  assert(!scatter.panels.empty());
  const Axes axes = axes_of(scatter);
  const std::vector<SeriesStyle> styles = styles_of(scatter);
  const int panels = static_cast<int>(scatter.panels.size());
  const int lines = (panels + panels_per_line - 1) / panels_per_line;
  const double right = margin + std::min(panels, panels_per_line) * (left_of_plot + plot_width);
  const double at_name = right + legend_gap + mark_radius + 8;
  double widest = width_of(front_name, text_size);
  for (const SeriesStyle& each : styles) widest = std::max(widest, width_of(each.series, text_size));
  const double heading = std::max(width_of(scatter.title, title_size, true), width_of(scatter.subtitle, text_size));
  const double width = std::ceil(std::max(at_name + mark_radius + widest, margin + heading) + margin);
  const double legend = above_plot + 20.0 * static_cast<double>(styles.size() + 2);
  const double height = std::ceil(margin + header + std::max(lines * (above_plot + plot_height + below_plot), legend));

  Canvas canvas;
  canvas.rectangle(0, 0, width, height, paper);
  canvas.text(margin, margin + title_size, scatter.title, title_size, Align::left, ink, true);
  canvas.text(margin, margin + title_size + 22, scatter.subtitle, text_size, Align::left, faint_ink);
  for (int i = 0; i < panels; ++i) {
    const double x = margin + left_of_plot + (i % panels_per_line) * (left_of_plot + plot_width);
    const double y = margin + header + above_plot + (i / panels_per_line) * (above_plot + plot_height + below_plot);
    draw_panel(canvas, scatter, axes, styles, scatter.panels[static_cast<std::size_t>(i)], x, y);
  }
  double y = margin + header + above_plot;
  for (const SeriesStyle& style : styles) {
    draw_mark(canvas, right + legend_gap, y, style);
    canvas.text(at_name, y + text_size * 0.36, style.series, text_size, Align::left, ink);
    y += 20;
  }
  canvas.line({{right + legend_gap - 8, y + 4}, {right + legend_gap + 8, y + 4}}, 1.5, faint_ink, true);
  canvas.text(at_name, y + 4 + text_size * 0.36, front_name, text_size, Align::left, faint_ink);
  if (texts) *texts = canvas.texts();
  return canvas.svg(width, height);
}

}  // namespace hayloft::runtime::eval
