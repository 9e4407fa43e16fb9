#include "offload/text/text_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "offload/text/utf8.h"

namespace hayloft {
namespace {

std::vector<std::size_t> widest(const TextTable& table) {
  std::vector<std::size_t> widths(table.front().size());
  for (const auto& line : table) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  return widths;
}

std::string quoted(const std::string& cell) {
  if (cell.find_first_of(",\"\n") == std::string::npos) return cell;
  std::string text = "\"";
  for (const char c : cell) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + '"';
}

}  // namespace

std::string aligned(const TextTable& table) {
  const std::vector<std::size_t> widths = widest(table);
  std::string text;
  const auto add = [&](const std::vector<std::string>& line) {
    text += fmt::format("{:<{}}", line[0], widths[0]);
    for (std::size_t i = 1; i < line.size(); ++i) text += fmt::format("  {:>{}}", line[i], widths[i]);
    text += '\n';
  };
  add(table.front());
  std::vector<std::string> rule;
  for (const std::size_t width : widths) rule.emplace_back(width, '-');
  add(rule);
  std::for_each(table.begin() + 1, table.end(), add);
  return text;
}

std::string markdown(const TextTable& table) {
  const std::vector<std::size_t> widths = widest(table);
  std::string text;
  const auto add = [&](const std::vector<std::string>& line) {
    text += fmt::format("| {:<{}} |", line[0], widths[0]);
    for (std::size_t i = 1; i < line.size(); ++i) text += fmt::format(" {:>{}} |", line[i], widths[i]);
    text += '\n';
  };
  add(table.front());
  text += fmt::format("|{}|", std::string(widths[0] + 2, '-'));
  for (std::size_t i = 1; i < widths.size(); ++i) text += fmt::format("{}:|", std::string(widths[i] + 1, '-'));
  text += '\n';
  std::for_each(table.begin() + 1, table.end(), add);
  return text;
}

std::string csv(const TextTable& table) {
  std::string text;
  for (const auto& line : table) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (i > 0) text += ',';
      text += quoted(line[i]);
    }
    text += '\n';
  }
  return text;
}

std::string one_line(const std::string& text, std::size_t most_bytes) {
  Utf8Stream stream;
  std::string line = stream.push(std::string_view(text).substr(0, most_bytes));
  if (text.size() <= most_bytes) line += stream.finish();
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text.size() <= most_bytes ? line : line + "...";
}

}  // namespace hayloft
