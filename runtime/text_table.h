#pragma once

#include <string>
#include <vector>

namespace hayloft::runtime {

// Lines of cells, as many in each; the first line is the heading.
using TextTable = std::vector<std::vector<std::string>>;

// For a terminal: columns padded to their widest cell, a rule under the heading; the first column to the left, figures
// to the right.
std::string aligned(const TextTable& table);
// The same as a Markdown table.
std::string markdown(const TextTable& table);
// Comma-separated values (RFC 4180, but lines end in a newline only).
std::string csv(const TextTable& table);

}  // namespace hayloft::runtime
