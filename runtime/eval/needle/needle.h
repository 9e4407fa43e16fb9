#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "runtime/eval/eval.h"

// Needle in a haystack: six digits hidden under a two-word key in a long text, asked for at its end. A preset of the
// task `depths` (runtime/eval/task.h): the context alone has the length asked for, and methods come one after another.
namespace hayloft::runtime::eval {

// Says what a run asks, of which text, by which methods and at which lengths.
struct NeedleOptions {
  std::vector<std::int64_t> ctx_sizes;  // tokens of context, needles included
  std::vector<MethodOptions> methods;
  int depths = 11;                 // evenly from 0% to 100%; one needle each
  bool one_needle = false;         // a haystack per depth with a single needle, instead of one that carries them all
  std::filesystem::path haystack;  // a text file or a folder of them, repeated to length; empty: the grammar generator
  std::uint64_t seed = 1;
  SessionOptions session;  // as in EvalOptions
};

// Called as a run goes on; each may be empty.
struct NeedleHooks {
  std::function<void(std::int64_t tokens)> context_started;  // before its text is made
  EvalHooks eval;                                            // of every context
};

// Rows by length, then (by depth with one_needle, then) by method, then by depth; each length is prefilled once, by
// SessionOptions::prefill, and every question is read exactly. Throws Error: options out of range, a haystack that
// cannot be read, a context that does not fit the arena.
void run_needle(const Model& model, const Tokenizer& tokenizer, offload::Arena& arena, const NeedleOptions& options,
                const NeedleHooks& hooks = {});

}  // namespace hayloft::runtime::eval
