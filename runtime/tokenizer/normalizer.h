#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/tokenizer/pretokenizer/pretokenizer_regex.h"
#include "runtime/tokenizer/unicode.h"

namespace hayloft::runtime {

class Field;
class Growth;

// The "normalizer" of a tokenizer.json: what is done to text before it is split into words. Immutable, thread-safe.
class Normalizer {
 public:
  Normalizer() = default;  // changes nothing

  // Throws Error naming the field if a step is damaged or not supported.
  explicit Normalizer(const Field& normalizer);

  bool empty() const { return steps_.empty(); }

  // text is valid UTF-8, and so is the result. Throws Error where the steps make too much of it, see Growth.
  std::string apply(std::string_view text) const;

 private:
  struct Lowercase {};
  struct ByteLetters {};
  struct Strip {
    bool left, right;
  };
  struct Prepend {
    std::string content;
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  using Step = std::variant<NormalForm, Lowercase, ByteLetters, Strip, Prepend, Replace>;

  static Step read_step(const Field& field);
  static std::string run(const Step& step, std::string text, Growth& growth);

  std::string where_;
  std::vector<Step> steps_;
};

// The {"String": ...} or {"Regex": ...} that tokenizer.json files call a pattern.
Regex read_pattern(const Field& pattern);

}  // namespace hayloft::runtime
