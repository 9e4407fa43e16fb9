#pragma once

#include <string>

#include "runtime/decode/prefill.h"

namespace hayloft::python {

// Reads "exact", "window:window=4096:sinks=4", "topk:k=1024:window=4096", "sparse:mass=0.98": the words of a saved
// context's note, of which a way takes its own. Throws Error naming a word that the way does not know, has twice or has
// out of range, and one that is missing.
runtime::PrefillOptions read_prefill(const std::string& text);

}  // namespace hayloft::python
