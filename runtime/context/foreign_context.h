#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "offload/host/arena.h"
#include "offload/snapshot/snapshot.h"
#include "runtime/cache/cache.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/context/reading_note.h"

// Saved contexts whose K and V were computed elsewhere, and saved contexts as tensors for others. The file of a model
// with layers 0 to L - 1 is a .safetensors file with
//
//   tokens      I32 or I64 [N]   ids of all tokens
//   layer.I.k   [Hkv][S][d]      keys of layer I, rotated and normed as they are attended to
//   layer.I.v   [Hkv][S][d]      values
//
// in F64, F32, F16 or BF16. S, at most N, is the same in every global layer; the tokens behind are read when the
// context is opened. A sliding-window layer may hold fewer, the newest, as long as they are all that its window reaches
// back to. The components of K are in the half-split order of RoPE (i is rotated with i + d/2), as in Hugging Face's
// checkpoints. A context that was not read exactly has one tensor more,
//
//   reading     I32 [n]          its note of how it was read (runtime/context/reading_note.h), a character each
namespace hayloft::runtime {

// The model that a context is to be opened with, without its weights: a folder or GGUF file. Throws Error.
struct ContextModel {
  explicit ContextModel(const std::filesystem::path& path);

  ModelConfig config;
  offload::ModelIdentity identity;
};

inline constexpr const char* reading_name = "reading";  // of the tensor

// K and V of every layer, somewhere in memory.
struct ForeignContext {
  std::string source;  // which messages begin with
  std::vector<std::int32_t> tokens;
  std::vector<TensorView> k;  // [layers], each [Hkv][S][d]
  std::vector<TensorView> v;
  ReadingNote reading = {};  // how the tokens were read; of its numbers those that say what was left out are kept
};

// Counts the tokens of a context, and those of which it has K and V.
struct ContextTokens {
  std::int64_t all = 0;
  std::int64_t cached = 0;
};

// Saves K and V, rounded to f16, as a context of that model at `path`. Throws Error naming the tensor that does not fit
// the model or is not finite in 16 bits, an id that is none of its vocabulary, and what cannot be written.
ContextTokens save_context(const ForeignContext& context, const ContextModel& model, gpu::Backend& backend,
                           offload::Arena& arena, const CacheOptions& options, const std::filesystem::path& path,
                           bool overwrite = false);

// The same from a cache that holds all K and V of the global layers; `windows` are the tails of sliding-window layers,
// by layer, in place of the cache's own. `reading` as in ForeignContext.
ContextTokens save_context(const Cache& cache, std::span<const std::int32_t> tokens,
                           const std::map<int, offload::SnapshotTail>& windows, const ContextModel& model,
                           const std::filesystem::path& path, bool overwrite = false, const ReadingNote& reading = {});

// Does the same from a file. Throws Error also on tensors that have no place in it and on a `reading` that is no note.
ContextTokens import_context(const std::filesystem::path& input, const ContextModel& model, gpu::Backend& backend,
                             offload::Arena& arena, const CacheOptions& options, const std::filesystem::path& path);

// The reverse, in F16 as K and V are kept. Throws Error on a damaged context and what cannot be written.
ContextTokens export_context(const offload::Snapshot& snapshot, offload::Arena& arena,
                             const std::filesystem::path& output);

}  // namespace hayloft::runtime
