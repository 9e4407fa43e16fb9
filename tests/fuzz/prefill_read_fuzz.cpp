#include <cstdlib>
#include <span>

#include "offload/error.h"
#include "runtime/context/earlier_reads.h"
#include "runtime/decode/prefill_read.h"

// Whatever a saved context holds in place of what was read sparsely, it is refused, or saved again the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hayloft::runtime;
  try {
    constexpr int checkpoints = 4;
    const EarlierReads earlier(std::as_bytes(std::span(data, size)), checkpoints);
    const std::vector<std::byte> saved = earlier.attachment().bytes;
    if (EarlierReads(saved, checkpoints).attachment().bytes != saved) std::abort();
    (void)earlier.at(0);
  } catch (const hayloft::Error&) {
  }
  try {
    const PrefillRead read = load_prefill_read(std::as_bytes(std::span(data, size)));
    const std::vector<std::byte> saved = save_prefill_read(read);
    if (save_prefill_read(load_prefill_read(saved)) != saved) std::abort();
    if (left_out(read) && prefill_read_line(read).empty()) std::abort();
  } catch (const hayloft::Error&) {
  }
  return 0;
}
