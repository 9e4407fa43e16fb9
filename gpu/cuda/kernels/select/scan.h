#pragma once

#include <cstdint>

#include "gpu/cuda/context.h"
#include "gpu/cuda/kernels/select/components.h"
#include "gpu/cuda/kernels/select/strips.h"
#include "gpu/cuda/memory/column_source.h"
#include "gpu/cuda_memory.h"

namespace hayloft::gpu::cuda {

struct HeadSoftmax;

// Says how the softmaxes of a batch's query heads are made of their partials: those of the store's chunks, then the
// tail's.
struct Normalising {
  std::int64_t store_chunks = 0;
  std::int64_t tail_chunks = 0;
  std::int64_t selectable = 0;   // chunks before the limit
  SoftmaxPart ranked_by;         // whose log-sum-exp takes the place of the batch's own, where there is one
  const float* sinks = nullptr;  // CacheView's, of the batch
  HeadSoftmax* out = nullptr;    // [batch Hq]; null: nothing is wanted
  unsigned* counters = nullptr;  // [batch Hkv], 0 before
};
// Counts the query heads of a KV head whose partials a thread of a scan asks for together.
inline constexpr int kNormalisedHeads = 4;

// Says what is scored, and where the results go. Heads are those of one batch: blockIdx.y = 0 is KV head `first_head`.
struct ColumnScan {
  const std::int32_t* components = nullptr;  // [Hkv][r]
  const std::int32_t* planes = nullptr;      // [Hkv][r] of columns in planes, more before fewer; null: all of each
  const float* weights = nullptr;            // [Hq][r]
  int rank = 0;
  int plane_total = 0;  // of a KV head, all components together
  int group = 0;
  int first_head = 0;      // of the batch's arrays below
  int head = 0;            // KV head of blockIdx.y = 0
  float plane_units = 0;   // index::plane_units() of the rank
  std::int64_t begin = 0;  // positions; a multiple of the tile
  std::int64_t end = 0;    // a multiple of kChunkTokens, or the store's end
  // The scan keeps all scores, -infinity from the store's end to the chunk's, or a bound of each strip of kStripTokens.
  // One of the two is null.
  float* logits = nullptr;  // [batch Hq][stride]
  std::int64_t stride = 0;
  // [batch Hq][strip_stride]: each query head's largest logit that is a number; with strip_sums, which takes a group in
  // one block, [batch Hkv][strip_stride]: the largest sum over the group. For columns that are not in planes.
  float* strip_max = nullptr;
  std::int64_t strip_stride = 0;
  bool strip_sums = false;
  PartialSoftmax partials;  // [batch Hq][partials.stride]
};

// Returns how many components of columns of a format one block scores at most by the tables that it has of them.
int most_scanned(const Context& context, offload::ColumnFormat format);
// Returns whether a block has the shared memory for strips of columns of a format: for bounds of them, and for a second
// look at those that are listed.
bool strips_fit(const Context& context, offload::ColumnFormat format, int rank, int group);

// Queues the scan of so many KV heads, those from scan.head on. With source.cached some runs come from the device, in
// blocks of kChunkTokens or more. Where that scans all of a batch whose tail has been scored, the last block of a KV
// head normalises, if that is wanted; columns in planes leave it to others.
void launch_scan(const Context& context, offload::ColumnFormat format, const ColumnSource& source,
                 const ColumnScan& scan, int heads, cudaStream_t stream, const Normalising& normalising = {});
// Launches that one.
void launch_cached_scan(const Context& context, offload::ColumnFormat format, const ColumnSource& source,
                        const ColumnScan& scan, int heads, cudaStream_t stream, const Normalising& normalising);

// Says what the listed strips are ranked by, and where their keys go: those of a Keys whose strips they are.
struct StripRank {
  Strips strips;
  const HeadSoftmax* heads = nullptr;  // [batch Hq]
  bool sum_logits = false;             // the score is the sum of the logits, else that of the softmaxes
  unsigned* keys = nullptr;            // [batch Hkv][ColumnScan::stride]
  unsigned* key_chunk_max = nullptr;   // [batch Hkv][PartialSoftmax::stride]
  unsigned* histogram = nullptr;       // [batch Hkv][kBins] of the keys' top bits, added to
};

// Queues the second look at the strips that are listed of so many KV heads, those of a batch, of at most
// cuda_most_scanned query heads each: their logits, which scan.logits takes, and keys. The source is one with
// source.cached whose scan has been queued.
void launch_rank_strips(const Context& context, offload::ColumnFormat format, const ColumnSource& source,
                        const ColumnScan& scan, const StripRank& rank, int heads, cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
