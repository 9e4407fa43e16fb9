#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "runtime/tokenizer/pretokenizer/pretokenizer_regex.h"

namespace hayloft::runtime {

class Field;
class Growth;

// The "decoder" of a tokenizer.json: from the texts of tokens to the bytes they stand for. Immutable, thread-safe.
class Decoder {
 public:
  Decoder() = default;  // joins the tokens with spaces, as the reference does without a decoder

  // Throws Error naming the field if a step is damaged or not supported.
  explicit Decoder(const Field& decoder);

  // continued: the tokens follow others, so nothing is taken from the beginning of their text.
  std::string decode(std::vector<std::string> tokens, bool continued) const;

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  struct Replace {
    Regex pattern;
    std::string text;  // of a pattern that is one; empty: an expression
    std::string content;
  };
  struct Strip {  // of each text that reaches this step
    std::string character;
    std::size_t start, stop;  // at most so many of it
  };
  struct Metaspace {
    std::string replacement;
    bool drops_first;  // the space that encoding has put before the text
  };
  struct WordSuffix {
    std::string suffix;
  };
  using Tokens = std::vector<std::string>;
  struct Pass {  // of tokens through the steps
    bool continued;
    Growth& growth;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, WordSuffix>;

  static Step read_step(const Field& field);
  static void run(const ByteLevel&, Tokens& tokens, Pass& pass);
  static void run(const ByteFallback&, Tokens& tokens, Pass& pass);
  static void run(const Fuse&, Tokens& tokens, Pass& pass);
  static void run(const Replace& step, Tokens& tokens, Pass& pass);
  static void run(const Strip& step, Tokens& tokens, Pass& pass);
  static void run(const Metaspace& step, Tokens& tokens, Pass& pass);
  static void run(const WordSuffix& step, Tokens& tokens, Pass& pass);

  std::string where_;
  std::vector<Step> steps_;
};

}  // namespace hayloft::runtime
