#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

// The files that several commands read and write, and lengths of contexts.
namespace hayloft::cli {

// -m,--model; `otherwise` says what is taken without it, and may be empty.
void add_model_option(CLI::App& app, std::string& directory, const std::string& otherwise);

// The positional CTX.hay.
void add_context_argument(CLI::App& app, std::string& context, const std::string& help);

// --json; `help` says what is written.
void add_json_option(CLI::App& app, std::string& file, const std::string& help);

// -c,--ctx-size TOKENS,...; `lengths` holds the default.
void add_context_lengths_option(CLI::App& app, std::vector<std::int64_t>& lengths);

}  // namespace hayloft::cli
