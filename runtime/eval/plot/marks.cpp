#include "runtime/eval/plot/marks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace hayloft::runtime::eval {
namespace {

// Told apart by every common form of colour blindness (Okabe and Ito).
constexpr Colour colours[] = {{0.00, 0.45, 0.70}, {0.84, 0.37, 0.00}, {0.00, 0.62, 0.45},
                              {0.80, 0.47, 0.65}, {0.34, 0.71, 0.91}, {0.90, 0.62, 0.00},
                              {0.35, 0.35, 0.35}, {0.75, 0.70, 0.15}, {0.45, 0.25, 0.55}};
constexpr std::size_t marks = 8;

}  // namespace

std::vector<SeriesStyle> style_series(const std::vector<std::pair<std::string, std::string>>& series) {
  std::vector<std::string> families;
  std::map<std::string, std::vector<std::string>> members;
  for (const auto& [name, given] : series) {
    const std::string& family = given.empty() ? name : given;
    std::vector<std::string>& those = members[family];
    if (those.empty()) families.push_back(family);
    if (std::find(those.begin(), those.end(), name) == those.end()) those.push_back(name);
  }
  std::vector<SeriesStyle> styles;
  for (std::size_t i = 0; i < families.size(); ++i) {
    const std::vector<std::string>& those = members[families[i]];
    for (std::size_t j = 0; j < those.size(); ++j) styles.push_back({those[j], families[i], i, j % marks});
  }
  return styles;
}

Colour series_colour(std::size_t number) {
  return colours[number % std::size(colours)];
}

void draw_mark(Canvas& canvas, double x, double y, const SeriesStyle& style) {
  const Colour colour = series_colour(style.colour);
  const double r = mark_radius * 0.9, s = mark_radius * 1.15;
  switch (style.mark) {
    case 0:
      return canvas.disc(x, y, mark_radius, colour);
    case 1:
      return canvas.rectangle(x - r, y - r, 2 * r, 2 * r, colour);
    case 2:
      return canvas.polygon({{x, y - s}, {x + s, y + r}, {x - s, y + r}}, colour);
    case 3:
      return canvas.polygon({{x, y - s}, {x + s, y}, {x, y + s}, {x - s, y}}, colour);
    case 4:
      return canvas.polygon({{x, y + s}, {x + s, y - r}, {x - s, y - r}}, colour);
    case 5:
      canvas.line({{x - r, y - r}, {x + r, y + r}}, 2.5, colour);
      return canvas.line({{x - r, y + r}, {x + r, y - r}}, 2.5, colour);
    case 6:
      canvas.line({{x - mark_radius, y}, {x + mark_radius, y}}, 2.5, colour);
      return canvas.line({{x, y - mark_radius}, {x, y + mark_radius}}, 2.5, colour);
    default:
      canvas.disc(x, y, mark_radius, colour);
      return canvas.disc(x, y, mark_radius * 0.45, paper);
  }
}

void draw_error_bar(Canvas& canvas, double x, double low, double high, Colour colour) {
  canvas.line({{x, low}, {x, high}}, 1.2, colour);
  for (const double end : {low, high}) canvas.line({{x - 3, end}, {x + 3, end}}, 1.2, colour);
}

double tick_distance(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 3)));
  const double times = range / 3 / power;
  return power * (times >= 5 ? 5 : times >= 2 ? 2 : 1);
}

void draw_y_ticks(Canvas& canvas, const PlotArea& area, double least, double most) {
  const double apart = tick_distance(most - least);
  for (double value = std::ceil(least / apart) * apart; value <= most; value += apart) {
    const double tick = area.y + (most - value) / (most - least) * area.height;
    canvas.line({{area.x, tick}, {area.x + area.width, tick}}, 1, grid_colour);
    canvas.text(area.x - 7, tick + text_size * 0.36, fmt::format("{:.4g}", std::round(value / apart) * apart + 0.0),
                text_size, Align::right, ink);
  }
}

}  // namespace hayloft::runtime::eval
