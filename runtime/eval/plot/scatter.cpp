#include "runtime/eval/plot/scatter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>

#include "offload/text/format.h"
#include "runtime/eval/plot/canvas.h"

namespace hayloft::runtime::eval {
namespace {

// Told apart by every common form of colour blindness (Okabe and Ito); each eight series have a mark of their own.
constexpr Colour colours[] = {{0.00, 0.45, 0.70}, {0.84, 0.37, 0.00}, {0.00, 0.62, 0.45}, {0.80, 0.47, 0.65},
                              {0.34, 0.71, 0.91}, {0.90, 0.62, 0.00}, {0.35, 0.35, 0.35}, {0.75, 0.70, 0.15}};
constexpr Colour grid{0.90, 0.90, 0.90};

constexpr int panels_per_line = 3;
constexpr double margin = 24;
constexpr double header = 62;  // title and subtitle
constexpr double plot_width = 300, plot_height = 230;
constexpr double left_of_plot = 70, above_plot = 34, below_plot = 56;
constexpr double legend_gap = 46;
constexpr double title_size = 18, panel_title_size = 13.5, text_size = 11.5;
constexpr double radius = 4.5;

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
      axes.least_y = std::min(axes.least_y, point.quality);
      axes.most_y = std::max(axes.most_y, point.quality);
    }
  }
  axes.least_x = std::floor(axes.least_x - 0.5);
  axes.most_x = std::ceil(axes.most_x + 0.5);
  const double room = std::max(0.05 * (axes.most_y - axes.least_y), 1e-3 * std::max(1.0, std::fabs(axes.most_y)));
  axes.least_y -= room;
  axes.most_y += room;
  return axes;
}

std::vector<std::string> series_of(const Scatter& scatter) {
  std::vector<std::string> series;
  for (const ScatterPanel& panel : scatter.panels) {
    for (const ScatterPoint& point : panel.points) {
      if (std::find(series.begin(), series.end(), point.series) == series.end()) series.push_back(point.series);
    }
  }
  return series;
}

void draw_mark(Canvas& canvas, double x, double y, std::size_t series) {
  const Colour colour = colours[series % std::size(colours)];
  const double r = radius * 0.9;
  switch (series / std::size(colours) % 4) {
    case 0:
      return canvas.disc(x, y, radius, colour);
    case 1:
      return canvas.rectangle(x - r, y - r, 2 * r, 2 * r, colour);
    case 2:
      canvas.line({{x - r, y - r}, {x + r, y + r}}, 2.5, colour);
      return canvas.line({{x - r, y + r}, {x + r, y - r}}, 2.5, colour);
    default:
      canvas.line({{x - radius, y}, {x + radius, y}}, 2.5, colour);
      return canvas.line({{x, y - radius}, {x, y + radius}}, 2.5, colour);
  }
}

// 1, 2 or 5 times a power of ten, so that a range has three to seven of them.
double tick_distance(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 3)));
  const double times = range / 3 / power;
  return power * (times >= 5 ? 5 : times >= 2 ? 2 : 1);
}

void draw_axes(Canvas& canvas, const Scatter& scatter, const Axes& axes, double x, double y) {
  const double octaves = axes.most_x - axes.least_x;
  const double step = std::max(1.0, std::ceil(octaves / 5));
  for (double at = axes.least_x; at <= axes.most_x; at += step) {
    const double tick = x + axes.x(std::exp2(at));
    canvas.line({{tick, y}, {tick, y + plot_height}}, 1, grid);
    canvas.text(tick, y + plot_height + 16, format_bytes(static_cast<std::uint64_t>(std::exp2(at))), text_size,
                Align::centre, ink);
  }
  const double apart = tick_distance(axes.most_y - axes.least_y);
  for (double value = std::ceil(axes.least_y / apart) * apart; value <= axes.most_y; value += apart) {
    const double tick = y + axes.y(value);
    canvas.line({{x, tick}, {x + plot_width, tick}}, 1, grid);
    canvas.text(x - 7, tick + text_size * 0.36, fmt::format("{:.4g}", std::round(value / apart) * apart + 0.0),
                text_size, Align::right, ink);
  }
  canvas.text(x + plot_width / 2, y + plot_height + 36, scatter.x_label, text_size, Align::centre, faint_ink);
  canvas.upward_text(x - left_of_plot + 16, y + plot_height / 2, scatter.y_label, text_size, faint_ink);
}

void draw_panel(Canvas& canvas, const Scatter& scatter, const Axes& axes, const ScatterPanel& panel, double x,
                double y) {
  canvas.text(x, y - 12, panel.title, panel_title_size, Align::left, ink, true);
  draw_axes(canvas, scatter, axes, x, y);
  std::vector<std::pair<double, double>> front;  // in steps: nobody has measured what lies between two points
  for (const std::size_t i : pareto_front(panel.points)) {
    const double at = x + axes.x(panel.points[i].bytes);
    if (!front.empty()) front.emplace_back(at, front.back().second);
    front.emplace_back(at, y + axes.y(panel.points[i].quality));
  }
  canvas.line(front, 1.5, faint_ink, true);
  const std::vector<std::string> series = series_of(scatter);
  for (const ScatterPoint& point : panel.points) {
    const auto number = std::find(series.begin(), series.end(), point.series) - series.begin();
    draw_mark(canvas, x + axes.x(point.bytes), y + axes.y(point.quality), static_cast<std::size_t>(number));
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

std::string render_scatter(const Scatter& scatter, PictureFormat format) {
  assert(!scatter.panels.empty());
  const Axes axes = axes_of(scatter);
  const std::vector<std::string> series = series_of(scatter);
  const int panels = static_cast<int>(scatter.panels.size());
  const int across = std::min(panels, panels_per_line);
  const int lines = (panels + panels_per_line - 1) / panels_per_line;
  const double right = margin + across * (left_of_plot + plot_width);
  PictureSize size{};
  const auto lay_out = [&](Canvas& measure) {
    double widest = 0;
    for (const std::string& name : series) widest = std::max(widest, measure.width_of(name, text_size));
    const double heading =
        std::max(measure.width_of(scatter.title, title_size, true), measure.width_of(scatter.subtitle, text_size));
    const double plots = lines * (above_plot + plot_height + below_plot);
    size.width = std::ceil(std::max(right + legend_gap + 2 * radius + 8 + widest, margin + heading) + margin);
    const double legend = above_plot + 20.0 * static_cast<double>(series.size() + 2);
    size.height = std::ceil(margin + header + std::max(plots, legend));
    return size;
  };
  return render_picture(format, lay_out, [&](Canvas& canvas) {
    canvas.rectangle(0, 0, size.width, size.height, paper);
    canvas.text(margin, margin + title_size, scatter.title, title_size, Align::left, ink, true);
    canvas.text(margin, margin + title_size + 22, scatter.subtitle, text_size, Align::left, faint_ink);
    for (int i = 0; i < panels; ++i) {
      const double x = margin + left_of_plot + (i % panels_per_line) * (left_of_plot + plot_width);
      const double y = margin + header + above_plot + (i / panels_per_line) * (above_plot + plot_height + below_plot);
      draw_panel(canvas, scatter, axes, scatter.panels[static_cast<std::size_t>(i)], x, y);
    }
    double y = margin + header + above_plot;
    for (std::size_t i = 0; i < series.size(); ++i, y += 20) {
      draw_mark(canvas, right + legend_gap, y, i);
      canvas.text(right + legend_gap + radius + 8, y + text_size * 0.36, series[i], text_size, Align::left, ink);
    }
    canvas.line({{right + legend_gap - 8, y + 4}, {right + legend_gap + 8, y + 4}}, 1.5, faint_ink, true);
    canvas.text(right + legend_gap + radius + 8, y + 4 + text_size * 0.36, "Pareto front", text_size, Align::left,
                faint_ink);
  });
}

}  // namespace hayloft::runtime::eval
