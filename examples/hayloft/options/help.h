#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <initializer_list>
#include <string>

// Formats `--help` and `--help-all`. Every option of a command is declared common or advanced, in a section. Help is
// one list of the common ones, short enough for a screen; --help-all has them all under the headings of their sections.
// Sections come in the order below in every command, and options within one in the order of their declarations.
namespace hayloft::cli {

enum class Section : std::uint8_t {
  model,
  server,
  text,
  context,
  task,
  sampling,
  attention,
  prefill,
  audit,
  memory,
  device,
  output
};

// Take options that `app` has already, by one of their names.
void common(CLI::App& app, Section section, std::initializer_list<const char*> options);
void advanced(CLI::App& app, Section section, std::initializer_list<const char*> options);

// Lines of 100 columns at most, but for the examples of a footer, which are printed as they are.
class HelpFormatter : public CLI::FormatterBase {
 public:
  // `name` is what was typed to get here, as in "hayloft needle". Mode All: every option.
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

}  // namespace hayloft::cli
