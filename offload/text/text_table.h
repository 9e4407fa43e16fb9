#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace hayloft {

// Lines of cells, as many in each; the first line is the heading.
using TextTable = std::vector<std::vector<std::string>>;

// For a terminal: columns padded to their widest cell, a rule under the heading; the first column to the left, figures
// to the right.
std::string aligned(const TextTable& table);
// The same as a Markdown table.
std::string markdown(const TextTable& table);
// Comma-separated values (RFC 4180, but lines end in a newline only).
std::string csv(const TextTable& table);

// A model may answer anything at all: made safe for one line of a terminal, cut behind `most_bytes`.
std::string one_line(const std::string& text, std::size_t most_bytes = 24);

}  // namespace hayloft
