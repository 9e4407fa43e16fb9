#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/eval/needle/haystack.h"

// The words of a needle: what is hidden, under which key, and how it is asked for. The bundled needle model was trained
// on exactly these sentences, with keys of this kind.
namespace hayloft::runtime::eval {

std::string needle_key(std::mt19937_64& random);                 // "brave harbor", from runtime/eval/needle/words
std::int64_t needle_keys();                                      // how many there are
std::string random_digits(std::mt19937_64& random, int digits);  // the first is not 0; digits in 1..18

// "The special magic number for brave harbor is 482913.": `kind` is what is hidden, "number" or another noun.
std::string needle_sentence(std::string_view kind, std::string_view key, std::string_view value);

// A question that ends a prompt, and the beginning of its answer, which goes to the model right behind it. With
// `several`, more than one value is asked for; `keys` is then one key or a list of them written out.
struct NeedleQuestion {
  std::string question;  // begins with a newline
  std::string answer;    // begins with a space, ends before the space in front of the value
};
// "What is the special magic number for brave harbor?", and how its answer begins.
NeedleQuestion needle_question(std::string_view kind, std::string_view keys, bool several = false);

// Sentences of filler, drawn as they are needed and kept: a shorter try uses the beginning of a longer one.
class Filler {
 public:
  explicit Filler(std::unique_ptr<SentenceSource> source) : source_(std::move(source)) {}
  const std::string& sentence(std::size_t i);

 private:
  std::unique_ptr<SentenceSource> source_;
  std::vector<std::string> sentences_;
};

}  // namespace hayloft::runtime::eval
