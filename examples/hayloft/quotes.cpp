#include "examples/hayloft/quotes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "examples/hayloft/options/help.h"
#include "examples/hayloft/process/messages.h"
#include "offload/error.h"
#include "offload/output_file.h"
#include "offload/text/format.h"
#include "runtime/eval/plot/canvas.h"
#include "runtime/eval/plot/picture.h"

namespace hayloft::cli {
namespace {

constexpr int kStripParts = 64, kDrawnParts = 256;
constexpr int kUsualQuotes = 3, kMostQuotes = 100;

// On one line, cut to so many bytes between characters.
std::string on_one_line(const std::string& text, std::size_t most) {
  std::string line;
  for (const char c : text) {
    const bool blank = static_cast<unsigned char>(c) <= ' ';
    if (!blank || (!line.empty() && line.back() != ' ')) line += blank ? ' ' : c;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  if (line.size() <= most) return line;
  while (most > 0 && (static_cast<unsigned char>(line[most]) & 0xC0) == 0x80) --most;
  return line.substr(0, most) + "...";
}

// The height of a part beside the highest, whose square root shows the small ones too.
double height_of(double share, double most) {
  return most > 0 ? std::sqrt(share / most) : 0;
}

std::vector<double> coarser(std::span<const double> map, std::size_t parts) {
  std::vector<double> sums(std::min(parts, map.size()));
  for (std::size_t i = 0; i < map.size(); ++i) sums[i * sums.size() / map.size()] += map[i];
  return sums;
}

std::string how_found(const runtime::serve::AnswerAudit& audit) {
  if (audit.samples == 0) return "no step was measured: the answer was too short";
  return fmt::format("exact attention of {} sampled steps of single layers; the answer attended to {:.1f}% of it",
                     audit.samples, 100 * audit.mass);
}

}  // namespace

void QuoteChoices::check() const {
  if (quotes < 0 || quotes > kMostQuotes) fail("--quotes {}: must be 1 to {}", quotes, kMostQuotes);
  if (!plot.empty()) runtime::eval::check_picture(plot);
}

void QuoteChoices::check_files() const {
  if (!plot.empty()) offload::require_writable(plot);
}

void add_quote_options(CLI::App& app, QuoteChoices& choices) {
  app.add_option_function<std::string>(
         "--quotes",
         [&choices](const std::string& text) {
           choices.quotes = kUsualQuotes;
           if (!text.empty() && !CLI::detail::lexical_cast(text, choices.quotes)) {
             fail("--quotes {}: must be a number of places", text);
           }
           if (choices.quotes < 1) fail("--quotes {}: must be 1 to {}", text, kMostQuotes);
         },
         "Show a map of where the answer looked, and the places attended most, by default 3")
      ->type_name("N")
      ->expected(0, 1)
      ->take_last();
  app.add_option("--plot", choices.plot, "Draw these maps, as SVG")->type_name("FILE")->take_last();
  common(app, Section::audit, {"--quotes"});
  common(app, Section::output, {"--plot"});
}

QuotedAnswers::QuotedAnswers(const Environment& environment, const QuoteChoices& choices,
                             std::vector<std::int32_t> text)
    : environment_(environment), choices_(choices), text_(std::move(text)) {
  if (choices_.quotes == 0) choices_.quotes = kUsualQuotes;
}

void QuotedAnswers::begin(runtime::Session& session) {
  auditor_ =
      std::make_unique<runtime::serve::AnswerAuditor>(session, *environment_.backend, choices_.quotes, kDrawnParts);
}

void QuotedAnswers::finish(const runtime::Session& session, const std::string& question) {
  const auto tokens = static_cast<std::int64_t>(text_.size());
  told_.push_back({question, auditor_->finish(session, *environment_.tokenizer, tokens, text_)});
  auditor_.reset();
  const runtime::serve::AnswerAudit& audit = told_.back().audit;
  if (audit.samples > 0) {
    note("{}\n0{:>{}}\n", map_strip(coarser(audit.map, kStripParts)), format_count(tokens) + " tokens",
         kStripParts - 1);
  }
  for (std::size_t i = 0; i < audit.quotes.size(); ++i) {
    const runtime::serve::Quote& quote = audit.quotes[i];
    note("{:>2}. {:4.1f}% at {}: {}\n", i + 1, 100 * quote.share, format_count(quote.position),
         shown(on_one_line(quote.text, 160)));
  }
  note("quotes: {}\n", how_found(audit));
}

void QuotedAnswers::draw() const {
  if (choices_.plot.empty()) return;
  std::vector<DrawnMap> maps;
  for (const Told& each : told_) {
    maps.push_back({each.question, static_cast<std::int64_t>(text_.size()), each.audit.map, each.audit.quotes,
                    how_found(each.audit)});
  }
  offload::write_file(choices_.plot, render_maps("Where the answers looked", maps));
}

std::string map_strip(std::span<const double> map) {
  constexpr const char* levels[] = {"·", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const double most = map.empty() ? 0 : *std::ranges::max_element(map);
  std::string strip;
  for (const double share : map) strip += levels[static_cast<int>(std::ceil(8 * height_of(share, most)))];
  return strip;
}

std::string render_maps(const std::string& title, const std::vector<DrawnMap>& maps) {
  namespace eval = runtime::eval;
  constexpr double left = 24, width = 752, strip = 36, line = 18;
  const auto mixed = [](double share) {  // from the strip's ground to a deep blue
    return eval::Colour{0.93 - 0.86 * share, 0.94 - 0.66 * share, 0.96 - 0.41 * share};
  };
  eval::Canvas shapes;
  double y = 36;
  shapes.text(left, y, title, 18, eval::Align::left, eval::ink, true);
  for (const DrawnMap& each : maps) {
    y += 40;
    shapes.text(left, y, on_one_line(each.question, 90), 14, eval::Align::left, eval::ink);
    y += 10;
    const double most = each.map.empty() ? 0 : *std::ranges::max_element(each.map);
    const double part = width / std::max<double>(1, static_cast<double>(each.map.size()));
    shapes.rectangle(left, y, width, strip, mixed(0));
    for (std::size_t i = 0; i < each.map.size(); ++i) {
      if (each.map[i] <= 0) continue;
      shapes.rectangle(left + static_cast<double>(i) * part, y, part, strip, mixed(height_of(each.map[i], most)));
    }
    y += strip + 14;
    const double tokens = static_cast<double>(std::max<std::int64_t>(1, each.tokens));
    for (std::size_t i = 0; i < each.quotes.size(); ++i) {
      const double middle = static_cast<double>(each.quotes[i].position) + each.quotes[i].tokens / 2.0;
      shapes.text(left + width * std::min(1.0, middle / tokens), y, fmt::format("{}", i + 1), 11, eval::Align::centre,
                  eval::ink, true);
    }
    y += line;
    shapes.text(left, y, "0", 11, eval::Align::left, eval::faint_ink);
    shapes.text(left + width, y, format_count(each.tokens) + " tokens", 11, eval::Align::right, eval::faint_ink);
    for (std::size_t i = 0; i < each.quotes.size(); ++i) {
      y += line;
      shapes.text(left, y,
                  fmt::format("{}. {:.1f}% at {}: {}", i + 1, 100 * each.quotes[i].share,
                              format_count(each.quotes[i].position), on_one_line(each.quotes[i].text, 84)),
                  12, eval::Align::left, eval::ink);
    }
    y += line;
    shapes.text(left, y, each.method, 11, eval::Align::left, eval::faint_ink);
  }
  return shapes.svg(left + width + left, y + 24);
}

}  // namespace hayloft::cli
