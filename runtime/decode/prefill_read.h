#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/sparse_causal.h"

namespace hayloft::runtime {

// Counts by global layer what prompts that were read sparsely have read and caught; empty where all was exact.
using PrefillRead = std::vector<gpu::SparseRead>;

// Returns whether keys were left out.
bool left_out(const PrefillRead& read);

// "19.4% of the keys read, 98.3% of the attention mass caught (least 93.1%, global layer 3 head 2)"; empty where
// nothing was read sparsely.
std::string prefill_read_line(const PrefillRead& read);

// Shows it by global layer: the keys read, the KV heads that read nearly all, the mass caught.
std::string prefill_read_table(const PrefillRead& read);
nlohmann::ordered_json prefill_read_json(const PrefillRead& read);  // the same as an array of objects

// It lies beside a context that was read sparsely, so that whoever opens it can say so.
inline constexpr std::string_view prefill_read_name = "prefill read";  // of the attachment

// As bytes that load_prefill_read() takes.
std::vector<std::byte> save_prefill_read(const PrefillRead& read);
// The inverse. Throws Error, without the name of the file, on bytes that are no such thing.
PrefillRead load_prefill_read(std::span<const std::byte> saved);

}  // namespace hayloft::runtime
