#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "gpu/products.h"
#include "offload/store/layout.h"
#include "runtime/attention/approximate_tokens.h"
#include "runtime/attention/predicted_error.h"

namespace hayloft::runtime {

class Session;

// Says of decoded steps whether they attended to everything: what every answer says of itself, wherever it is given.
struct AttentionStatement {
  std::map<std::string, std::int64_t> methods;  // steps x global layers by method
  double attended = 0;                          // shares of the positions, summed over the steps
  std::int64_t steps = 0;
  // Says how what was not read exactly was read, as prefill_label(), a saved context's way first; empty where all was.
  std::string prompt;
  bool int8_products = false;  // quantised weights met inputs rounded to 8 bits, in the prompt or since
  offload::RowFormat rows = offload::RowFormat::f16;  // the fewest bits that keys and values attended to were kept in
  bool over_ranks = false;                            // nobody counts the positions of all: `dense` alone is exact
  std::optional<double> mass;                         // the share of the attention mass caught, where that was measured
  std::int64_t samples = 0;                           // steps of single layers in which it was
  PredictedError predicted;                           // by the steps that know it
  bool measurable = false;  // whether --audit could have measured it, so that a line may say so

  void add(const Session& session);  // the steps of a session, once
  void add(const AttentionStatement& other);
  void add_reading(const std::string& way);  // to `prompt`, unless it is there

  bool exact() const;           // true also where there were no steps
  bool attends_to_all() const;  // likewise, however inputs, keys and values were rounded
  double share() const { return steps > 0 ? attended / static_cast<double>(steps) : 1; }
  // "exact", or "approximate: 34.1% of the positions attended to, by dense in 1500 steps x layers, ...; 96.4% of the
  // attention mass caught in 7 sampled steps of single layers", or, where the rest is estimated, "approximate:
  // predicted output error 0.04 (largest 0.3 in layer 11), 98.7% of the attention mass attended". Where only some steps
  // predict their errors, these come behind the methods. `named`: the methods beside it.
  std::string text(bool named = false) const;
};

// Returns the format of the rows that a session has in its store; f16 where all of its tokens are in the tail.
offload::RowFormat rows_attended_to(const Session& session);

nlohmann::ordered_json predicted_error_json(const PredictedError& predicted);
// The members that every usage and every document has: attention, exact, methods, and of attended_share, mass and
// predicted_error those that are known.
nlohmann::ordered_json statement_members(const AttentionStatement& statement);
std::string statement_json(const AttentionStatement& statement);  // a document of schema hayloft.attended/1

// The same of an answer that is known by its means alone, as a row of an evaluation. prompt: as prefill_label(); empty
// where it was read exactly.
std::string attention_statement(double attended_share, const std::string& method, std::optional<double> mass,
                                gpu::Products products = gpu::Products::exact, const std::string& prompt = "",
                                offload::RowFormat rows = offload::RowFormat::f16);

}  // namespace hayloft::runtime
