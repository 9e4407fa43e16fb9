#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "runtime/eval/interval.h"
#include "runtime/eval/plot/canvas.h"

namespace hayloft::runtime::eval {

// Points of quality against bytes, in panels that share their axes' meaning. The legend names each series once.
struct ScatterPoint {
  std::string series;
  double bytes = 0;                     // smaller is better
  double quality = 0;                   // larger is better
  std::string family = {};              // series of a family have a colour in common
  std::optional<Interval> likely = {};  // where the true quality lies: an error bar
};

struct ScatterPanel {
  std::string title;
  std::vector<ScatterPoint> points;
};

struct Scatter {
  std::string title;
  std::string subtitle;
  std::string x_label;
  std::string y_label;
  std::vector<ScatterPanel> panels;
  double whole = 0;  // so many bytes are called 1, and fewer a fraction of it; 0: bytes are bytes
};

// The points that no other beats: none has as few bytes and at least the quality, or fewer bytes and as much of it.
// Indices in the order of their bytes; of equal points the first.
std::vector<std::size_t> pareto_front(const std::vector<ScatterPoint>& points);

// Bytes on a logarithmic scale, the front as steps from point to point. `texts`: as
// render_heatmap.
std::string render_scatter(const Scatter& scatter, std::vector<TextBox>* texts = nullptr);

}  // namespace hayloft::runtime::eval
