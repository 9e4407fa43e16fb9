#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/eval/plot/canvas.h"

namespace hayloft::runtime::eval {

// Several panels of coloured cells over the same two axes, one per thing compared. Says nothing about needles: see
// needle_report.h.
struct HeatmapPanel {
  std::string title;
  std::vector<std::string> notes;             // [columns], written above each column; may be empty
  std::vector<std::optional<double>> values;  // [rows][columns], 0..1; nothing: an empty cell
};

struct Heatmap {
  std::string title;
  std::string subtitle;
  std::string x_label;
  std::string y_label;
  std::string legend;                // what the colours mean, 0% to 100%
  std::vector<std::string> columns;  // tick labels from left to right
  std::vector<std::string> rows;     // tick labels from top to bottom
  std::vector<HeatmapPanel> panels;
  // The names of 1 and 0 in the legend where every cell is one or the other.
  std::string yes = "yes";
  std::string no = "no";
};

// Returns the picture as SVG. `texts`, if given, gets the places of all texts, for tests.
std::string render_heatmap(const Heatmap& heatmap, std::vector<TextBox>* texts = nullptr);

}  // namespace hayloft::runtime::eval
