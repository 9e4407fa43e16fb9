#include "examples/hayloft/text_output.h"

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "offload/error.h"
#include "offload/output_file.h"

namespace hayloft::cli {

void TextOutput::check() const {
  if (wanted() && !to_stdout()) offload::require_writable(place_);
}

void TextOutput::write(std::string_view text) const {
  if (!wanted()) return;
  if (to_stdout()) return print(text);
  offload::OutputFile file(place_);
  file.write(text);
  file.commit();
}

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fail("standard output cannot be written: {}", std::generic_category().message(errno));
  }
}

}  // namespace hayloft::cli
