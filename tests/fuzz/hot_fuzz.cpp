#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "offload/snapshot/format.h"
#include "runtime/context/hot_file.h"

// Whatever lies beside a saved context, what is read of it is nothing or sound. The checksum would keep a fuzzer out,
// so an input is what follows the header, for a context of two KV heads, eight runs and two layers.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hayloft;
  using namespace hayloft::runtime;
  HotSubject subject;
  subject.tokens = 70;
  subject.stored_tokens = 64;
  subject.kv_heads = 2;
  subject.runs = 8;
  constexpr std::size_t header = 16;
  std::vector<std::byte> bytes = write_hot(subject, {});
  const std::size_t subject_bytes = bytes.size() - header;
  bytes.resize(header + subject_bytes + size);
  const std::int32_t layers = 2;
  std::memcpy(bytes.data() + header + subject_bytes - sizeof layers, &layers, sizeof layers);
  if (size > 0) std::memcpy(bytes.data() + header + subject_bytes, data, size);
  const std::uint64_t checksum = offload::snapshot_checksum(std::span(bytes).subspan(header));
  std::memcpy(bytes.data() + 8, &checksum, sizeof checksum);
  const auto hot = read_hot(bytes, subject, layers);
  if (!hot) return 0;
  if (hot->size() != 2) std::abort();
  for (const gpu::HotReads& layer : *hot) {
    for (const float use : layer.runs) {
      if (!(use >= 0) || !std::isfinite(use)) std::abort();
    }
    for (const auto& positions : layer.rows) {
      std::int32_t before = -1;
      for (const std::int32_t position : positions) {
        if (position <= before || position >= subject.stored_tokens) std::abort();
        before = position;
      }
    }
  }
  return 0;
}
