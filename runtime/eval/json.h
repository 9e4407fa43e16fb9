#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/eval/eval.h"

// Rows of an evaluation, and the recipe that they were made by, as JSON.
namespace hayloft::runtime::eval {

// The options that all rows of a file have in common. Rows of another recipe cannot stand beside them.
struct EvalRecipe {
  std::string version;      // of hayloft
  std::string model;        // a name, for people
  std::string fingerprint;  // of the model, hexadecimal
  std::string device;
  int threads = 0;
  int ranks = 1;  // that hold the contexts together
  std::uint64_t seed = 0;
  int digits = 0;
  int scored_tokens = 0;
  int needles = 0;            // of the task `depths`, which all lie in one context; 0 without that task
  std::string chat_template;  // a name; that of a model with a digest behind it
  std::string haystack, squad, hotpotqa, triviaqa, cnn_dailymail, text;  // digests of what was read; empty: nothing
  std::vector<std::string> prepared;                                     // likewise, of the files of --jsonl
  std::string prefill;
  std::string weights = "stored";  // their form, as --weights takes it
  gpu::Products products = gpu::Products::exact;
  std::string drafts;  // of dense attention's answers, and how many tokens at most; empty: none
  int chunk_tokens = 0;
  int block_tokens = 0;  // 0: block_tokens_for() each length
  std::string columns;
  std::string rows = "f16";
  bool agreement = false;
  bool fidelity = true;
  double auto_fidelity = 0;  // EvalOptions::auto_fidelity, where `auto` is among the methods
};

std::string recipe_json(const EvalRecipe& recipe);    // one line
std::string recipe_digest(const EvalRecipe& recipe);  // what its rows name it by

// "3f2a...": of the bytes.
std::string text_digest(std::string_view bytes);

// The same of a file's bytes, or of all the files below a folder with their names. `option` is named in what it
// throws.
std::string file_digest(const std::string& option, const std::filesystem::path& path);

// One line without its end; `recipe` is the recipe's digest.
std::string eval_row_json(const EvalRow& row, const std::string& recipe);
// Throws Error, naming `where`, when it is no such line or of another recipe.
EvalRow parse_eval_row(const std::string& line, const std::string& recipe, const std::string& where);

// All that a user can choose about a method, in one line: two methods with the same are the same.
std::string method_key(const MethodOptions& method);

}  // namespace hayloft::runtime::eval
