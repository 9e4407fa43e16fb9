#include "runtime/eval/plot/canvas.h"

#include <cairo-pdf.h>
#include <cairo-svg.h>
#include <cairo.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "offload/error.h"

namespace hayloft::runtime::eval {
namespace {

const double pi = std::acos(-1.0);

using Surface = std::unique_ptr<cairo_surface_t, void (*)(cairo_surface_t*)>;

void check_status(cairo_status_t status) {
  if (status != CAIRO_STATUS_SUCCESS) fail("the picture could not be drawn: {}", cairo_status_to_string(status));
}

extern "C" cairo_status_t append_bytes(void* closure, const unsigned char* data, unsigned length) {
  static_cast<std::string*>(closure)->append(reinterpret_cast<const char*>(data), length);
  return CAIRO_STATUS_SUCCESS;
}

}  // namespace

Canvas::Canvas(cairo_surface_t* surface) : cairo_(cairo_create(surface), cairo_destroy) {}

void Canvas::check() const {
  check_status(cairo_status(cairo_.get()));
}

void Canvas::rectangle(double x, double y, double width, double height, Colour colour) {
  use(colour);
  cairo_rectangle(cairo_.get(), x, y, width, height);
  cairo_fill(cairo_.get());
}

void Canvas::disc(double x, double y, double radius, Colour colour) {
  use(colour);
  cairo_arc(cairo_.get(), x, y, radius, 0, 2 * pi);
  cairo_fill(cairo_.get());
}

void Canvas::polygon(const std::vector<std::pair<double, double>>& corners, Colour colour, double opacity) {
  cairo_set_source_rgba(cairo_.get(), colour.r, colour.g, colour.b, opacity);
  for (const auto& [x, y] : corners) cairo_line_to(cairo_.get(), x, y);
  cairo_close_path(cairo_.get());
  cairo_fill(cairo_.get());
}

void Canvas::line(const std::vector<std::pair<double, double>>& points, double width, Colour colour, bool dashed) {
  use(colour);
  cairo_set_line_width(cairo_.get(), width);
  const double dash = 4;
  cairo_set_dash(cairo_.get(), &dash, dashed ? 1 : 0, 0);
  for (const auto& [x, y] : points) cairo_line_to(cairo_.get(), x, y);
  cairo_stroke(cairo_.get());
}

void Canvas::text(double x, double y, const std::string& text, double size, Align align, Colour colour, bool bold) {
  use(colour);
  font(size, bold);
  const double shift = align == Align::left ? 0 : align == Align::centre ? 0.5 : 1;
  const double width = measure(text);
  x -= shift * width;
  // Upper and lower case reach so far above and below the base line.
  TextBox box{text, x, y - 0.76 * size, x + width, y + 0.22 * size};
  cairo_user_to_device(cairo_.get(), &box.left, &box.top);
  cairo_user_to_device(cairo_.get(), &box.right, &box.bottom);
  if (box.top > box.bottom) std::swap(box.top, box.bottom);  // turned upwards
  texts_.push_back(box);
  cairo_move_to(cairo_.get(), x, y);
  cairo_show_text(cairo_.get(), text.c_str());
  cairo_new_path(cairo_.get());
}

void Canvas::upward_text(double x, double y, const std::string& text, double size, Colour colour) {
  cairo_save(cairo_.get());
  cairo_translate(cairo_.get(), x, y);
  cairo_rotate(cairo_.get(), -pi / 2);
  this->text(0, 0, text, size, Align::centre, colour);
  cairo_restore(cairo_.get());
}

double Canvas::width_of(const std::string& text, double size, bool bold) {
  font(size, bold);
  return measure(text);
}

void Canvas::use(Colour colour) {
  cairo_set_source_rgb(cairo_.get(), colour.r, colour.g, colour.b);
}

void Canvas::font(double size, bool bold) {
  cairo_select_font_face(cairo_.get(), "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                         bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(cairo_.get(), size);
}

double Canvas::measure(const std::string& text) {
  cairo_text_extents_t extents;
  cairo_text_extents(cairo_.get(), text.c_str(), &extents);
  return extents.x_advance;
}

PictureFormat picture_format(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  if (ending == ".svg") return PictureFormat::svg;
  if (ending == ".pdf") return PictureFormat::pdf;
  if (ending == ".png") return PictureFormat::png;
  fail("{}: a picture's name must end in .svg, .pdf or .png", path.string());
}

std::string render_picture(PictureFormat format, const std::function<PictureSize(Canvas& measure)>& lay_out,
                           const std::function<void(Canvas& canvas)>& draw, std::vector<TextBox>* texts) {
  const Surface ruler(cairo_recording_surface_create(CAIRO_CONTENT_COLOR, nullptr), cairo_surface_destroy);
  Canvas measure(ruler.get());
  const auto [width, height] = lay_out(measure);
  measure.check();

  std::string bytes;
  const auto draw_on = [&](const Surface& surface) {
    Canvas canvas(surface.get());
    draw(canvas);
    canvas.check();
    if (texts) *texts = canvas.texts();
  };
  if (format == PictureFormat::png) {
    constexpr double pixels_per_unit = 2;
    const Surface surface(cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(width * pixels_per_unit),
                                                     static_cast<int>(height * pixels_per_unit)),
                          cairo_surface_destroy);
    cairo_surface_set_device_scale(surface.get(), pixels_per_unit, pixels_per_unit);
    draw_on(surface);
    check_status(cairo_surface_write_to_png_stream(surface.get(), append_bytes, &bytes));
    return bytes;
  }
  const auto create =
      format == PictureFormat::pdf ? cairo_pdf_surface_create_for_stream : cairo_svg_surface_create_for_stream;
  const Surface surface(create(append_bytes, &bytes, width, height), cairo_surface_destroy);
  draw_on(surface);
  cairo_surface_finish(surface.get());  // writes what is left
  check_status(cairo_surface_status(surface.get()));
  return bytes;
}

}  // namespace hayloft::runtime::eval
