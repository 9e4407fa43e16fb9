#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/eval/plot/picture.h"

// Draws the pictures of reports: shapes and text on one canvas, written as SVG.
namespace hayloft::runtime::eval {

struct Colour {
  double r, g, b;  // 0..1
};
inline constexpr Colour ink{0.13, 0.16, 0.18};
inline constexpr Colour faint_ink{0.40, 0.44, 0.47};
inline constexpr Colour paper{1, 1, 1};

// The place of a text in a picture.
struct TextBox {
  std::string text;
  double left = 0, top = 0, right = 0, bottom = 0;
};

enum class Align : std::uint8_t { left, centre, right };

// Returns how wide a text is in DejaVu Sans, the widest of the fonts that a viewer may draw it with.
double width_of(const std::string& text, double size, bool bold = false);

// Collects shapes as SVG elements. Units are SVG pixels, y grows downwards. Not thread-safe.
class Canvas {
 public:
  void rectangle(double x, double y, double width, double height, Colour colour);
  void disc(double x, double y, double radius, Colour colour);
  void polygon(const std::vector<std::pair<double, double>>& corners, Colour colour, double opacity = 1);
  void line(const std::vector<std::pair<double, double>>& points, double width, Colour colour, bool dashed = false);

  // y is the base line.
  void text(double x, double y, const std::string& text, double size, Align align, Colour colour, bool bold = false);
  // Reads from bottom to top, centred on (x, y).
  void upward_text(double x, double y, const std::string& text, double size, Colour colour);

  const std::vector<TextBox>& texts() const { return texts_; }  // everything written so far
  std::string svg(double width, double height) const;           // the whole document

 private:
  void add_text(const std::string& place, const std::string& text, double size, Colour colour, bool bold);

  std::string elements_;
  std::vector<TextBox> texts_;
};

}  // namespace hayloft::runtime::eval
