#pragma once

#include <memory>

#include "runtime/attention/column_recall.h"
#include "runtime/decode/session.h"

// Measures how well each format of columns would rank the positions of what a session has read.
namespace hayloft::runtime {

// Attached to a session (Session::attach_method), keeps a strided sample of each global layer's newest queries. Attends
// to nothing itself.
SharedMethod make_query_sample();

// Puts the sampled queries of each layer to the keys before all of them: every setting that the head dimension has room
// for, against exact scores. Throws std::logic_error unless the sample is attached. `chosen` is left empty.
ColumnRecall measure_columns(const Session& session, const Method& sample, gpu::Backend& backend);

// Returns the bytes that measuring takes in the machine's memory besides the session, which has read so many tokens.
std::uint64_t measuring_bytes(const ModelConfig& config, std::int64_t tokens);

// The rule: of the settings whose recall is good enough, over the layers on average and in the weakest, that of fewest
// bits, the earlier of equals; none: no setting is.
std::optional<ColumnSetting> choose_columns(const ColumnRecall& recall);

}  // namespace hayloft::runtime
