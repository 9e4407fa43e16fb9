#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "runtime/eval/plot/canvas.h"

// Tells series apart, in every picture alike: a family by its colour, a member by its mark.
namespace hayloft::runtime::eval {

inline constexpr Colour grid_colour{0.90, 0.90, 0.90};
inline constexpr double mark_radius = 4.5;

// The layout of pictures of several panels.
inline constexpr int panels_per_line = 3;
inline constexpr double margin = 24;
inline constexpr double header = 62;  // title and subtitle
inline constexpr double plot_width = 300;
inline constexpr double left_of_plot = 70, above_plot = 34;
inline constexpr double title_size = 18, panel_title_size = 13.5, text_size = 11.5;

struct SeriesStyle {
  std::string series;
  std::string family;
  std::size_t colour = 0;
  std::size_t mark = 0;
};

// A style for each series, families together in the order in which they were first met. Pairs of series and family; an
// empty family is one of its own. Nine colours and eight marks go round.
std::vector<SeriesStyle> style_series(const std::vector<std::pair<std::string, std::string>>& series);

Colour series_colour(std::size_t number);
void draw_mark(Canvas& canvas, double x, double y, const SeriesStyle& style);
// From low to high, at x, with a short stroke at either end.
void draw_error_bar(Canvas& canvas, double x, double low, double high, Colour colour);

// 1, 2 or 5 times a power of ten, so that a range has three to seven of them.
double tick_distance(double range);

// The place of a panel's marks, without its labels.
struct PlotArea {
  double x = 0, y = 0, width = 0, height = 0;
};
// Draws the ticks of a linear axis: lines across the plot, and their numbers on the left.
void draw_y_ticks(Canvas& canvas, const PlotArea& area, double least, double most);

}  // namespace hayloft::runtime::eval
