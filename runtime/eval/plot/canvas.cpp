#include "runtime/eval/plot/canvas.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "offload/error.h"
#include "offload/text/utf8.h"

namespace hayloft::runtime::eval {
namespace {

// Advance widths of DejaVu Sans and of its bold face, from the space to the tilde, in thousandths of the size.
constexpr std::array<std::uint16_t, 95> regular_widths = {
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361,  318, 337, 636, 636, 636,
    636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632,
    575, 775, 752, 295, 295, 656, 557, 863, 748, 787, 603, 787, 695, 635,  611, 732, 684, 989, 685,
    611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635, 615, 352,  635, 634, 278, 278, 579,
    278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592,  525, 636, 337, 636, 838};
constexpr std::array<std::uint16_t, 95> bold_widths = {
    348, 456,  521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415,  380, 365, 696, 696,  696,
    696, 696,  696, 696, 696, 696,  696, 400, 400, 838, 838, 838, 580, 1000, 774, 762, 734, 830,  683,
    683, 821,  837, 372, 372, 775,  637, 995, 837, 850, 733, 850, 770, 720,  682, 812, 774, 1103, 771,
    724, 725,  457, 365, 457, 838,  500, 500, 675, 716, 593, 716, 678, 435,  716, 712, 343, 343,  665,
    343, 1042, 712, 687, 716, 716,  493, 595, 478, 712, 652, 924, 645, 652,  582, 712, 365, 712,  838};
constexpr std::uint16_t other_width = 1000;  // of other characters, of which few are wider

// At most two decimals, as many as can be seen.
std::string svg_number(double value) {
  std::string text = fmt::format("{:.2f}", value + 0.0);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string svg_colour(Colour colour) {
  const auto byte = [](double part) { return static_cast<int>(std::lround(std::clamp(part, 0.0, 1.0) * 255)); };
  return fmt::format("#{:02x}{:02x}{:02x}", byte(colour.r), byte(colour.g), byte(colour.b));
}

std::string svg_points(const std::vector<std::pair<double, double>>& points) {
  std::string text;
  for (const auto& [x, y] : points)
    text += fmt::format("{}{},{}", text.empty() ? "" : " ", svg_number(x), svg_number(y));
  return text;
}

// Text as it stands in XML: whole UTF-8 without control characters.
std::string svg_text(const std::string& text) {
  std::string valid, out;
  append_valid_utf8(text, false, valid);
  for (const char c : valid) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

}  // namespace

double width_of(const std::string& text, double size, bool bold) {
  double width = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char character = utf8_at(text, at);
    const bool known = character.code >= ' ' && character.code <= '~';
    width += known ? (bold ? bold_widths : regular_widths)[character.code - ' '] : other_width;
    at += character.length;
  }
  return width * size / 1000;
}

void Canvas::rectangle(double x, double y, double width, double height, Colour colour) {
  elements_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", svg_number(x),
                           svg_number(y), svg_number(width), svg_number(height), svg_colour(colour));
}

void Canvas::disc(double x, double y, double radius, Colour colour) {
  elements_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"/>\n", svg_number(x), svg_number(y),
                           svg_number(radius), svg_colour(colour));
}

void Canvas::polygon(const std::vector<std::pair<double, double>>& corners, Colour colour, double opacity) {
  elements_ += fmt::format("<polygon points=\"{}\" fill=\"{}\"{}/>\n", svg_points(corners), svg_colour(colour),
                           opacity < 1 ? fmt::format(" fill-opacity=\"{}\"", svg_number(opacity)) : "");
}

void Canvas::line(const std::vector<std::pair<double, double>>& points, double width, Colour colour, bool dashed) {
  elements_ +=
      fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"{}/>\n", svg_points(points),
                  svg_colour(colour), svg_number(width), dashed ? " stroke-dasharray=\"4\"" : "");
}

void Canvas::text(double x, double y, const std::string& text, double size, Align align, Colour colour, bool bold) {
  const double width = width_of(text, size, bold);
  const double left = x - (align == Align::left ? 0 : align == Align::centre ? 0.5 : 1) * width;
  // Upper and lower case reach so far above and below the base line.
  texts_.push_back({text, left, y - 0.76 * size, left + width, y + 0.22 * size});
  const char* anchor = align == Align::left     ? ""
                       : align == Align::centre ? " text-anchor=\"middle\""
                                                : " text-anchor=\"end\"";
  add_text(fmt::format("x=\"{}\" y=\"{}\"{}", svg_number(x), svg_number(y), anchor), text, size, colour, bold);
}

void Canvas::upward_text(double x, double y, const std::string& text, double size, Colour colour) {
  const double half = width_of(text, size) / 2;
  texts_.push_back({text, x - 0.76 * size, y - half, x + 0.22 * size, y + half});
  add_text(
      fmt::format("transform=\"translate({} {}) rotate(-90)\" text-anchor=\"middle\"", svg_number(x), svg_number(y)),
      text, size, colour, false);
}

void Canvas::add_text(const std::string& place, const std::string& text, double size, Colour colour, bool bold) {
  elements_ += fmt::format("<text {} font-size=\"{}\"{} fill=\"{}\">{}</text>\n", place, svg_number(size),
                           bold ? " font-weight=\"bold\"" : "", svg_colour(colour), svg_text(text));
}

std::string Canvas::svg(double width, double height) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"DejaVu Sans, Verdana, Helvetica, Arial, sans-serif\">\n{2}</svg>\n",
      svg_number(width), svg_number(height), elements_);
}

bool is_picture(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".svg";
}

void check_picture(const std::filesystem::path& path) {
  if (is_picture(path)) return;
  fail("{}: a picture's name must end in .svg; rsvg-convert, of the package librsvg2-bin, makes PNG and PDF of it",
       path.string());
}

}  // namespace hayloft::runtime::eval
