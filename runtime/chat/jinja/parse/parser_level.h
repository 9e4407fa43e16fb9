#pragma once

#include "runtime/chat/jinja/parse/parser.h"

namespace hayloft::runtime::jinja {

// Bounds how deep blocks and expressions may lie in one another, each a call of the parser and of the evaluator; real
// templates stay below 30.
constexpr int most_levels = 200;

class Parser::Level {
 public:
  explicit Level(Parser& parser) : parser_(parser) {
    if (++parser_.level_ <= most_levels) return;
    --parser_.level_;
    parser_.refuse(parser_.current().line, "blocks and expressions lie in one another too deep");
  }
  ~Level() { --parser_.level_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Parser& parser_;
};

}  // namespace hayloft::runtime::jinja
