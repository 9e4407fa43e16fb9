#include "runtime/eval/plot/heatmap.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "runtime/eval/plot/canvas.h"

namespace hayloft::runtime::eval {
namespace {

constexpr Colour empty_cell{0.93, 0.93, 0.93};
// From a pale peach to a deep teal: lightness falls all the way, so the scale survives grey printing and every common
// form of colour blindness.
constexpr Colour scale[] = {{0.965, 0.780, 0.663}, {0.561, 0.749, 0.659}, {0.122, 0.435, 0.420}};

constexpr int panels_per_line = 4;
constexpr int most_ticks = 12;
constexpr double margin = 24;
constexpr double header = 62;        // title and subtitle
constexpr double left_of_plot = 46;  // row tick labels
constexpr double above_plot = 44;    // panel title and notes
constexpr double below_plot = 46;    // column tick labels and their axis
constexpr double between_panels = 18;
constexpr double axis_label = 22;  // the rows' axis, once per line of panels
constexpr double legend_width = 92;
constexpr double title_size = 18, panel_title_size = 13.5, text_size = 11.5, note_size = 10.5;

Colour colour_of(double value) {
  const double at = std::clamp(value, 0.0, 1.0) * (std::size(scale) - 1);
  const auto below = std::min(static_cast<std::size_t>(at), std::size(scale) - 2);
  const double t = at - static_cast<double>(below);
  const auto mix = [&](double Colour::*part) { return scale[below].*part * (1 - t) + scale[below + 1].*part * t; };
  return {mix(&Colour::r), mix(&Colour::g), mix(&Colour::b)};
}

// The places of everything, in units of one SVG pixel.
struct Geometry {
  double cell_width = 0;
  double cell_height = 0;
  double plot_width = 0;
  double plot_height = 0;
  int lines = 0;
  double width = 0;
  double height = 0;

  double panel_x(int panel) const {  // of the plot, as is panel_y
    return margin + axis_label + left_of_plot +
           (panel % panels_per_line) * (plot_width + left_of_plot + between_panels);
  }
  double panel_y(int panel) const {
    return margin + header + above_plot + (panel / panels_per_line) * (above_plot + plot_height + below_plot);
  }
};

Geometry lay_out(const Heatmap& heatmap) {
  Geometry geometry;
  const auto columns = static_cast<double>(heatmap.columns.size());
  const auto rows = static_cast<double>(heatmap.rows.size());
  double widest_title = 0;
  for (const HeatmapPanel& panel : heatmap.panels) {
    widest_title = std::max(widest_title, width_of(panel.title, panel_title_size, true));
  }
  geometry.plot_width =
      std::max({std::clamp(52 * columns, 130.0, 420.0), widest_title, width_of(heatmap.x_label, text_size)});
  geometry.plot_height = std::clamp(26 * rows, 130.0, 390.0);
  geometry.cell_width = geometry.plot_width / columns;
  geometry.cell_height = geometry.plot_height / rows;

  const int panels = static_cast<int>(heatmap.panels.size());
  geometry.lines = (panels + panels_per_line - 1) / panels_per_line;
  const double right = geometry.panel_x(std::min(panels, panels_per_line) - 1) + geometry.plot_width;
  const double heading = std::max(width_of(heatmap.title, title_size, true), width_of(heatmap.subtitle, text_size));
  geometry.width = std::ceil(std::max(right + legend_width, margin + heading) + margin);
  geometry.height = std::ceil(geometry.panel_y((geometry.lines - 1) * panels_per_line) + geometry.plot_height +
                              below_plot + margin / 2);
  return geometry;
}

// Labels every step-th tick, the first and the last always among them where that divides evenly.
std::size_t tick_step(std::size_t ticks, std::size_t most) {
  return ticks <= most ? 1 : (ticks - 1 + most - 2) / (most - 1);
}

void draw_panel(Canvas& canvas, const Heatmap& heatmap, const Geometry& geometry, int index) {
  const HeatmapPanel& panel = heatmap.panels[static_cast<std::size_t>(index)];
  const double x = geometry.panel_x(index);
  const double y = geometry.panel_y(index);
  const std::size_t columns = heatmap.columns.size();
  const std::size_t rows = heatmap.rows.size();

  canvas.text(x, y - 24, panel.title, panel_title_size, Align::left, ink, true);
  const double gap_x = geometry.cell_width < 8 ? 0 : 1;
  const double gap_y = geometry.cell_height < 8 ? 0 : 1;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      const std::optional<double> value = panel.values[row * columns + column];
      canvas.rectangle(x + static_cast<double>(column) * geometry.cell_width + gap_x,
                       y + static_cast<double>(row) * geometry.cell_height + gap_y, geometry.cell_width - 2 * gap_x,
                       geometry.cell_height - 2 * gap_y, value ? colour_of(*value) : empty_cell);
    }
  }
  const auto widest_column = static_cast<std::size_t>(std::max(1.0, geometry.plot_width / 40));
  const std::size_t column_step = tick_step(columns, widest_column);
  for (std::size_t column = 0; column < columns; column += column_step) {
    const double centre = x + (static_cast<double>(column) + 0.5) * geometry.cell_width;
    canvas.text(centre, y + geometry.plot_height + 16, heatmap.columns[column], text_size, Align::centre, ink);
    if (!panel.notes.empty()) {
      canvas.text(centre, y - 6, panel.notes[column], note_size, Align::centre, faint_ink);
    }
  }
  canvas.text(x + geometry.plot_width / 2, y + geometry.plot_height + 34, heatmap.x_label, text_size, Align::centre,
              faint_ink);
  for (std::size_t row = 0; row < rows; row += tick_step(rows, most_ticks)) {
    const double centre = y + (static_cast<double>(row) + 0.5) * geometry.cell_height;
    canvas.text(x - 7, centre + text_size * 0.36, heatmap.rows[row], text_size, Align::right, ink);
  }
}

// Returns whether every cell that has a value is 0 or 1.
bool yes_or_no(const Heatmap& heatmap) {
  return std::all_of(heatmap.panels.begin(), heatmap.panels.end(), [](const HeatmapPanel& panel) {
    return std::all_of(panel.values.begin(), panel.values.end(),
                       [](const std::optional<double>& value) { return !value || *value == 0 || *value == 1; });
  });
}

void draw_legend(Canvas& canvas, const Heatmap& heatmap, const Geometry& geometry) {
  constexpr int steps = 60;
  constexpr double bar_width = 16;
  const int last_of_line = std::min(static_cast<int>(heatmap.panels.size()), panels_per_line) - 1;
  const double x = geometry.panel_x(last_of_line) + geometry.plot_width + 40;
  const double y = geometry.panel_y(0);
  if (yes_or_no(heatmap)) {
    for (const int value : {1, 0}) {
      const double top = y + 26 * (1 - value);
      canvas.rectangle(x - 16, top, bar_width, bar_width, colour_of(value));
      canvas.text(x + bar_width - 10, top + bar_width / 2 + text_size * 0.36, value ? heatmap.yes : heatmap.no,
                  text_size, Align::left, ink);
    }
    return;
  }
  const double height = std::min(geometry.plot_height, 220.0);
  for (int i = 0; i < steps; ++i) {  // a hair taller than its share, so that no seams show
    canvas.rectangle(x, y + height * i / steps, bar_width, height / steps + (i + 1 < steps ? 0.5 : 0),
                     colour_of(1 - (i + 0.5) / steps));
  }
  constexpr const char* labels[] = {"100%", "50%", "0%"};
  for (int i = 0; i < 3; ++i) {
    canvas.text(x + bar_width + 6, y + height * i / 2 + text_size * 0.36, labels[i], text_size, Align::left, ink);
  }
  canvas.upward_text(x - 8, y + height / 2, heatmap.legend, text_size, faint_ink);
}

void draw(Canvas& canvas, const Heatmap& heatmap, const Geometry& geometry) {
  canvas.rectangle(0, 0, geometry.width, geometry.height, paper);
  canvas.text(margin, margin + title_size, heatmap.title, title_size, Align::left, ink, true);
  canvas.text(margin, margin + title_size + 22, heatmap.subtitle, text_size, Align::left, faint_ink);
  for (int line = 0; line < geometry.lines; ++line) {
    const double centre = geometry.panel_y(line * panels_per_line) + geometry.plot_height / 2;
    canvas.upward_text(margin + text_size, centre, heatmap.y_label, text_size, faint_ink);
  }
  for (int i = 0; i < static_cast<int>(heatmap.panels.size()); ++i) draw_panel(canvas, heatmap, geometry, i);
  draw_legend(canvas, heatmap, geometry);
}

}  // namespace

std::string render_heatmap(const Heatmap& heatmap, std::vector<TextBox>* texts) {
  assert(!heatmap.panels.empty() && !heatmap.columns.empty() && !heatmap.rows.empty());
  const Geometry geometry = lay_out(heatmap);
  Canvas canvas;
  draw(canvas, heatmap, geometry);
  if (texts) *texts = canvas.texts();
  return canvas.svg(geometry.width, geometry.height);
}

}  // namespace hayloft::runtime::eval
