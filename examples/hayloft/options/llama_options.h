#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <span>
#include <string>

// Answers what users of llama.cpp type out of habit: options of its programs that mean nothing here, each with what to
// use instead.
namespace hayloft::cli {

// The hint for the first argument that is such an option and none of the command's own: one line. Nothing where there
// is none. What follows an option that takes free text is text.
std::optional<std::string> llama_hint(std::span<char* const> arguments, const CLI::App& command);

}  // namespace hayloft::cli
