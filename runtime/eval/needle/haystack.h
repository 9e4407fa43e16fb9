#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace hayloft::runtime::eval {

// An endless supply of filler, one sentence at a time, whitespace collapsed to single spaces. Deterministic. Not
// thread-safe.
class SentenceSource {
 public:
  virtual ~SentenceSource() = default;
  virtual std::string next() = 0;
};

// Sentences from a grammar over a few thousand words: with four or more free choices out of hundreds in each, no two
// are expected to agree within a million tokens.
std::unique_ptr<SentenceSource> make_grammar(std::uint64_t seed);

// The sentences of a text file, or of all regular files below a folder in the order of their paths, from the start
// again when they run out. Throws Error when nothing readable is there.
std::unique_ptr<SentenceSource> make_text(const std::filesystem::path& path);

// Whitespace collapsed, cut behind '.', '!' or '?' (and closing quotes), and at 400 bytes where a text has no such end.
std::vector<std::string> split_sentences(std::string_view text);

// Uniform in [0, n), the same on every machine.
std::uint64_t draw(std::mt19937_64& random, std::uint64_t n);

}  // namespace hayloft::runtime::eval
