#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "offload/host/arena.h"
#include "runtime/attention/method.h"
#include "runtime/decode/session.h"
#include "runtime/tokenizer/tokenizer.h"

// Needle in a haystack: six digits hidden under a two-word key in a long text, asked for at its end. Every length is
// prefilled once, by SessionOptions::prefill; every question is a session forked from that context and is read exactly.
namespace hayloft::runtime::eval {

struct NeedleOptions {
  std::vector<std::int64_t> ctx_sizes;  // tokens of context, needles included
  std::vector<MethodOptions> methods;
  int depths = 11;                 // evenly from 0% to 100%; one needle each
  bool one_needle = false;         // a haystack per depth with a single needle, instead of one that carries them all
  std::filesystem::path haystack;  // a text file or a folder of them, repeated to length; empty: the grammar generator
  std::uint64_t seed = 1;
  SessionOptions session;
};

// One question asked by one method.
struct NeedleRow {
  MethodOptions attn;
  std::int64_t k = 0;       // positions attended at this length; 0 for dense
  std::int64_t window = 0;  // w at this length
  std::int64_t tokens = 0;  // context length
  double depth = 0;         // percent
  std::string expected;
  std::string answer;
  bool hit = false;
  double prefill_seconds = 0;  // of the whole context, shared by its questions
  double prepare_seconds = 0;  // building what the method keeps besides the cache, after the prefill; shared likewise
  std::uint64_t state_bytes = 0;  // of that
  double decode_ms_per_token = 0;
  double link_bytes_per_token = 0;
  double near_bytes_per_token = 0;
  double positions_scored_per_token = 0;  // keys that were compared, as Counters count them
  std::optional<double> recall;  // share of the true top-k positions among those attended, over the answering steps
};

struct NeedleHooks {
  std::function<void(std::int64_t tokens)> context_started;
  PrefillProgress prefill;
  StateProgress prepare;
  std::function<void(const NeedleRow&)> row;
};

// Throws Error: options out of range, a haystack that cannot be read, a context that does not fit the arena.
std::vector<NeedleRow> run_needle(const Model& model, const Tokenizer& tokenizer, offload::Arena& arena,
                                  const NeedleOptions& options, const NeedleHooks& hooks = {});

}  // namespace hayloft::runtime::eval
