#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "offload/store/layout.h"
#include "runtime/plan/plan.h"

// The ways of reading an option's value. What is typed wrong throws Error or CLI::ParseError while the command line is
// being parsed.
namespace hayloft::cli {

// A context length: parse_count's notation, at least 1, and few enough for positions of 32 bits.
std::int64_t context_length(const std::string& text);
std::vector<std::int64_t> context_lengths(const std::string& text);  // one at least, with commas between them

// --shape: LAYERS,HEADS,KV-HEADS,HEAD-DIM.
runtime::ShapeOptions read_shape(const std::string& text);

// The columns of K: f16, int8 or int4.
offload::ColumnFormat column_format(const std::string& text);

// What `read` returns. The message of an Error that it throws begins with the option's name.
template <class Read>
auto named(const std::string& option, Read read) {
  try {
    return read();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.rfind(option, 0) == 0) throw;
    fail("{}: {}", option, message);
  }
}

// An option whose text `read` turns into a value. Given twice, the last one counts.
template <class Read>
CLI::Option* add_text(CLI::App& app, const std::string& names, const std::string& type, Read read,
                      const std::string& help) {
  return app.add_option_function<std::string>(names, read, help)->type_name(type)->take_last();
}

// A check of a number: finite, and within [least, most]. CLI::Range lets "nan" through.
inline CLI::Validator finite(double least, double most) {
  const auto check = [=](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return {};
    return fmt::format("{}: must be a number from {} to {}", text, least, most);
  };
  return {check, ""};
}

// One of a few words, each standing for a value.
template <class T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, std::vector<std::pair<std::string, T>> choices,
                        const std::string& help, std::function<void(T)> choose) {
  std::string words;
  for (const auto& [word, value] : choices) words += (words.empty() ? "" : "|") + word;
  const auto read = [=](const std::string& text) {
    for (const auto& [word, value] : choices) {
      if (text == word) return choose(value);
    }
    fail("{} {}: must be one of {}", name, text, words);
  };
  return add_text(app, name, words, read, help);
}

// parse_count and parse_bytes with the option's name in what they throw; counts within [least, most].
int read_int(const std::string& option, const std::string& text, int least = 1);
std::uint64_t read_bytes(const std::string& option, const std::string& text);

}  // namespace hayloft::cli
