#include "examples/hayloft/process/text_output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/ranks.h"
#include "offload/error.h"
#include "offload/output_file.h"
#include "offload/text/visible.h"

namespace hayloft::cli {

void TextOutput::check() const {
  if (wanted() && !to_stdout() && first_rank()) offload::require_writable(place_);
}

void TextOutput::write(std::string_view text) const {
  if (!wanted() || !first_rank()) return;
  if (to_stdout()) return print(text);
  offload::OutputFile file(place_);
  file.write(text);
  file.commit();
}

void TableOutput::show(std::string_view text) {
  if (to_stderr_) return write_message(text);
  if (!problem_.empty()) return;
  try {
    print(text);
  } catch (const Error& error) {
    problem_ = error.what();
  }
}

void TableOutput::finish() const {
  if (!problem_.empty()) fail("{}", problem_);
}

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fail("standard output cannot be written: {}", std::generic_category().message(errno));
  }
}

void print_foreign(std::string_view text) {
  static const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  if (terminal) return print(visible(text, Lines::kept));
  print(text);
}

}  // namespace hayloft::cli
