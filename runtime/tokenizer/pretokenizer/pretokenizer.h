#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/tokenizer/growth.h"
#include "runtime/tokenizer/pretokenizer/pretokenizer_regex.h"

namespace hayloft::runtime {

class Field;

// The "pre_tokenizer" of a tokenizer.json: cuts normalized text into the words that merges never cross. Immutable and
// thread-safe.
class PreTokenizer {
 public:
  PreTokenizer() = default;  // all text is one word

  // Throws Error naming the field if a step is damaged or not supported.
  explicit PreTokenizer(const Field& pre_tokenizer);

  // Words are bytes which the vocabulary writes in byte letters. The reference turns each word into letters at this
  // step; where it is the last one, that is left to the model, which has a table for it.
  bool byte_level() const { return byte_level_; }

  using Sink = std::function<void(std::string_view word)>;

  // A run over one text: what a single thread needs. The PreTokenizer outlives it.
  class Run {
   public:
    Run(const PreTokenizer& steps, Sink sink);

    // Sends the words of text (valid UTF-8) to the sink in order, none of them empty. at_start: this is the beginning
    // of what the user gave, not a stretch behind an added token. Throws Error where the steps make too much of it, see
    // Growth.
    void split(std::string_view text, bool at_start);

   private:
    void step(std::size_t index, std::string_view text, bool at_start);

    const PreTokenizer& steps_;
    Sink sink_;
    std::vector<Regex::Matcher> matchers_;  // of the Split steps, in order
    std::vector<std::size_t> matcher_of_;   // of each step, its index in matchers_
    std::optional<Growth> growth_;          // of the text that is being split
  };

 private:
  enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  enum class Scheme { always, first, never };
  struct Split {
    Regex pattern;
    Behavior behavior;
    bool invert;  // the matches are the words, not what lies between them
  };
  struct PrependSpace {};
  struct ByteLetters {};
  struct Metaspace {
    std::string replacement;
    Scheme prepend;
  };
  using Step = std::variant<Split, PrependSpace, ByteLetters, Metaspace>;

  void read_step(const Field& field);
  void add_split(std::string_view pattern, Regex::Syntax syntax, Behavior behavior, bool invert, const Field& field);
  void add_metaspace(const Field& field);
  static Behavior read_behavior(const Field& field);

  template <class Piece>
  static void cut(const Split& split, Regex::Matcher& matcher, std::string_view text, Piece&& piece);

  std::string where_;
  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace hayloft::runtime
