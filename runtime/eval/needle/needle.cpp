#include "runtime/eval/needle/needle.h"

#include "offload/error.h"
#include "offload/text/format.h"
#include "runtime/eval/needle/context.h"
#include "runtime/eval/reach.h"

namespace hayloft::runtime::eval {
namespace {

constexpr int needle_digits = 6;
constexpr int answer_tokens = 12;      // at most: one digit a token, a space, and what ends the number
constexpr int smallest_context = 256;  // tokens: room for the opening and a needle

void check(const Model& model, const offload::Arena& arena, const NeedleOptions& options) {
  if (options.ctx_sizes.empty()) fail("--ctx-size: name at least one context length");
  if (options.depths < 1) fail("--depths {}: at least one needle is needed", options.depths);
  for (const std::int64_t length : options.ctx_sizes) {
    if (length < smallest_context) fail("--ctx-size {}: needs at least {} tokens", length, smallest_context);
    if (!options.one_needle) require_room(options.depths, length);
    const std::uint64_t needed = host_bytes(model.config(), session_at(options.session, length).cache, length);
    const std::uint64_t left = arena.budget_bytes() - arena.used_bytes();
    if (needed > left) {
      fail("--ctx-size {}: needs {} of host memory for K and V, and {} are left; lower it or raise --host-memory",
           length, format_bytes(needed), format_bytes(left));
    }
  }
}

}  // namespace

void run_needle(const Model& model, const Tokenizer& tokenizer, offload::Arena& arena, const NeedleOptions& options,
                const NeedleHooks& hooks) {
  check(model, arena, options);
  EvalOptions eval;
  eval.methods = options.methods;
  eval.samples = options.depths;
  eval.by_method = true;
  eval.fidelity_steps = answer_tokens;
  eval.session = options.session;
  DepthsOptions depths;
  depths.seed = options.seed;
  depths.needles = options.depths;
  depths.digits = needle_digits;
  depths.haystack = options.haystack;
  depths.question_behind = true;
  depths.answer_tokens = answer_tokens;
  for (const std::int64_t length : options.ctx_sizes) {
    for (int needle = 0; needle < (options.one_needle ? options.depths : 1); ++needle) {
      if (hooks.context_started) hooks.context_started(length);
      if (options.one_needle) depths.only = needle;
      const std::unique_ptr<EvalTask> task = make_depths(depths, tokenizer, length);
      run_eval(model, tokenizer, arena, *task, eval, hooks.eval);
    }
  }
}

}  // namespace hayloft::runtime::eval
