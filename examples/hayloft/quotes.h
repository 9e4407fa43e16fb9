#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "examples/hayloft/process/environment.h"
#include "runtime/serve/answer_audit.h"

// Tells where an answer looked: which places of a saved context it attended to most, and a map of all of it.
namespace hayloft::cli {

struct QuoteChoices {
  int quotes = 0;            // so many places are told; 0: none
  std::string plot;          // where the maps are drawn; empty: nowhere
  void check() const;        // throws Error on what is out of range, or no picture
  void check_files() const;  // throws Error when the maps cannot be written
  bool wanted() const { return quotes > 0 || !plot.empty(); }
};
void add_quote_options(CLI::App& app, QuoteChoices& choices);

// Watches the answers to questions, one after another, and tells of each what it was made from.
class QuotedAnswers {
 public:
  // The text is that of the saved context. The environment must outlive it.
  QuotedAnswers(const Environment& environment, const QuoteChoices& choices, std::vector<std::int32_t> text);

  void begin(runtime::Session& session);                                      // before the answer's first step
  void finish(const runtime::Session& session, const std::string& question);  // prints on standard error
  void draw() const;                                                          // when all have been told

 private:
  const Environment& environment_;
  QuoteChoices choices_;
  std::vector<std::int32_t> text_;
  std::unique_ptr<runtime::serve::AnswerAuditor> auditor_;
  struct Told {
    std::string question;
    runtime::serve::AnswerAudit audit;
  };
  std::vector<Told> told_;
};

// Returns a line of as many characters as the map has parts, each the higher the more attention lies on its part.
std::string map_strip(std::span<const double> map);

// The map of one answer, as a picture draws it.
struct DrawnMap {
  std::string question;
  std::int64_t tokens = 0;
  std::vector<double> map;
  std::vector<runtime::serve::Quote> quotes;
  std::string method;  // how it was found, and what was caught
};
std::string render_maps(const std::string& title, const std::vector<DrawnMap>& maps);  // as SVG

}  // namespace hayloft::cli
