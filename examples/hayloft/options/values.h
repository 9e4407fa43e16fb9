#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <limits>
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
runtime::plan::ShapeOptions read_shape(const std::string& text);

// "1%" or "0.01". Throws Error naming the option.
double read_share(const std::string& option, const std::string& text);

// The columns of K: f16, int8 or int4.
offload::ColumnFormat column_format(const std::string& text);
offload::RowFormat row_format(const std::string& text);

// Returns what `read` returns. The message of an Error that it throws begins with the option's name.
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

// A number within [least, most], written in digits: read_number(). Given twice, the last one counts.
CLI::Option* add_number(CLI::App& app, const std::string& names, const std::string& type, double& value, double least,
                        double most, const std::string& help);

// -s,--seed or the like: a whole number of 64 bits.
CLI::Option* add_seed(CLI::App& app, const std::string& names, std::uint64_t& value, const std::string& help);

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

// A finite number within [least, most], all of the text. Throws Error naming the option.
double read_number(const std::string& option, const std::string& text, double least, double most);

// parse_count and parse_bytes with the option's name in what they throw; counts within [least, most].
int read_int(const std::string& option, const std::string& text, int least = 1,
             int most = std::numeric_limits<int>::max());
std::uint64_t read_bytes(const std::string& option, const std::string& text);

}  // namespace hayloft::cli
