#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/eval/plot/picture.h"

struct _cairo;
struct _cairo_surface;

// What the pictures of reports are drawn with: shapes and text on one canvas, saved as SVG, PDF or PNG.
namespace hayloft::runtime::eval {

struct Colour {
  double r, g, b;  // 0..1
};
inline constexpr Colour ink{0.13, 0.16, 0.18};
inline constexpr Colour faint_ink{0.40, 0.44, 0.47};
inline constexpr Colour paper{1, 1, 1};

// Where a text stands in a picture.
struct TextBox {
  std::string text;
  double left = 0, top = 0, right = 0, bottom = 0;
};

enum class Align : std::uint8_t { left, centre, right };

// Units are SVG pixels, y grows downwards. Not thread-safe.
class Canvas {
 public:
  explicit Canvas(_cairo_surface* surface);  // keeps a reference to it
  void check() const;                        // throws Error when drawing failed

  void rectangle(double x, double y, double width, double height, Colour colour);
  void disc(double x, double y, double radius, Colour colour);
  void polygon(const std::vector<std::pair<double, double>>& corners, Colour colour, double opacity = 1);
  void line(const std::vector<std::pair<double, double>>& points, double width, Colour colour, bool dashed = false);

  // y is the base line.
  void text(double x, double y, const std::string& text, double size, Align align, Colour colour, bool bold = false);
  // Reads from bottom to top, centred on (x, y).
  void upward_text(double x, double y, const std::string& text, double size, Colour colour);
  double width_of(const std::string& text, double size, bool bold = false);
  // Of everything written so far.
  const std::vector<TextBox>& texts() const { return texts_; }

 private:
  void use(Colour colour);
  void font(double size, bool bold);
  double measure(const std::string& text);

  std::unique_ptr<_cairo, void (*)(_cairo*)> cairo_;
  std::vector<TextBox> texts_;
};

struct PictureSize {
  double width, height;
};

// The bytes of a picture file, one drawing for all formats, PNG at two pixels per unit: `lay_out` says how large it
// will be, with a canvas to measure text on, then `draw` draws it. `texts`, if given, gets the places of all texts, for
// tests. Throws Error when memory for it is lacking.
std::string render_picture(PictureFormat format, const std::function<PictureSize(Canvas& measure)>& lay_out,
                           const std::function<void(Canvas& canvas)>& draw, std::vector<TextBox>* texts = nullptr);

}  // namespace hayloft::runtime::eval
