#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "runtime/eval/needle/text.h"
#include "runtime/tokenizer/tokenizer.h"

// A context with needles at every depth, and the questions that it is asked.
namespace hayloft::runtime::eval {

// A number hidden under a key, and the depth at which its sentence stands.
struct Needle {
  double depth;  // percent
  std::string key;
  std::string digits;

  std::string sentence() const { return needle_sentence("number", key, digits); }
  std::string question() const {
    const NeedleQuestion text = needle_question("number", key);
    return text.question + text.answer;
  }
};

// Throws Error where a text of `length` tokens has no room for so many needles: before they are written out, which
// takes as long as there are needles.
void require_room(std::int64_t needles, std::int64_t length);

// Under keys that differ, spread evenly from 0% to 100%; a single one at 50%. Throws Error for more than half as many
// as there are keys, which are drawn until they differ.
std::vector<Needle> make_needles(int depths, int digits, std::mt19937_64& random);

// Exactly `length` tokens, begun with whatever the tokenizer puts before a text. Throws Error when they are too few for
// the needles.
std::vector<std::int32_t> needle_context(const Tokenizer& tokenizer, Filler& filler, const std::vector<Needle>& needles,
                                         std::int64_t length);

// Exactly the digits the model answers with, after leading white space; more or fewer than asked for is a miss. Where
// it answers with something else, that text.
std::string digits_of_answer(const std::string& text);

}  // namespace hayloft::runtime::eval
