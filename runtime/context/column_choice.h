#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "offload/snapshot/snapshot.h"
#include "runtime/attention/column_recall.h"
#include "runtime/decode/session.h"

// Choosing the key columns of a context that is about to be read. Its first tokens are read, the last queries of each
// global layer among them are put to every format of columns made of the keys before them, and the format whose
// cheapest setting finds enough of the true top k is taken: docs/auto.md has the rule and what it was tried on.
namespace hayloft::runtime {

struct ColumnChoice {
  // None where the text is too short to be measured, the model has no global layer, or ranks hold it together.
  std::shared_ptr<const ColumnRecall> recall;
  double seconds = 0;  // that it took, the reading itself not counted
};

// Most tokens that are read before the choice, and fewest that allow one.
inline constexpr std::int64_t most_choosing_tokens = 8192;
inline constexpr std::int64_t fewest_choosing_tokens = 2048;

// Returns how many of a text's tokens are read before the choice: whole chunks; 0: the text is too short for one.
std::int64_t choosing_tokens(std::int64_t tokens, int chunk_tokens);
// The same of a text that such a model reads so; 0 also where there is no choice: without global layers, by rows that
// are no f16, layer by layer, or over ranks.
std::int64_t choosing_tokens(const ModelConfig& config, const SessionOptions& options, std::int64_t tokens);

// Returns a session with the first choosing_tokens() of `tokens`, which is, to the bit, that of options with the chosen
// columns, which `options` has afterwards, after reading them. Where there is no choice it has options' own columns.
// Throws Error, and whatever `progress` throws.
Session read_choosing(const Model& model, offload::Arena& arena, SessionOptions& options,
                      std::span<const std::int32_t> tokens, const PrefillProgress& progress, ColumnChoice& choice);

// Returns what was measured of a context when it was read; null where nothing was, as in files of earlier versions, or
// that is damaged or of a later version: it keeps nothing else from being read.
std::shared_ptr<const ColumnRecall> saved_column_recall(const offload::Snapshot& snapshot);

// `auto` by what was measured, if anything was: it leaves out what is blind, and starts from as much of the columns as
// was chosen. Other methods stay as they are.
MethodOptions with_column_recall(MethodOptions method, std::shared_ptr<const ColumnRecall> recall);
// The same by what a saved context has.
SharedMethod with_column_recall(const SharedMethod& method, const offload::Snapshot& snapshot);

// Writes what was measured: JSON for reports, and lines for people, a row for each setting with its mean and every
// layer, in percent.
nlohmann::ordered_json column_recall_json(const ColumnRecall& recall);
std::string column_recall_table(const ColumnRecall& recall);

// One line for the user: "columns: planes, as 128 bits of planes columns find 85% of the true top 128; measured ...".
// Empty where there was no choice.
std::string column_choice_line(const ColumnChoice& choice, double reading_seconds = 0);

}  // namespace hayloft::runtime
