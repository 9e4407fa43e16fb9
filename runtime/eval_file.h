#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "runtime/eval.h"

// Rows of an evaluation as lines of JSON: what `--out` writes, one line as soon as it is there, and reads again to go
// on where a run was ended.
namespace hayloft::runtime {

// What all rows of a file have in common. Rows of another recipe cannot stand beside them.
struct EvalRecipe {
  std::string version;      // of hayloft
  std::string model;        // a name, for people
  std::string fingerprint;  // of the model, hexadecimal
  std::string device;
  int threads = 0;
  std::uint64_t seed = 0;
  int digits = 0;
  int scored_tokens = 0;
  std::string chat_template;
  std::string haystack, squad, hotpotqa, text;  // digests of what was read; empty: nothing
  std::vector<std::string> prepared;            // likewise, of the files of --jsonl
  std::string prefill;
  int chunk_tokens = 0, block_tokens = 0;
  std::string columns;
  bool agreement = false;
  bool recall = true;
};

std::string recipe_json(const EvalRecipe& recipe);    // one line
std::string recipe_digest(const EvalRecipe& recipe);  // what its rows name it by

// "3f2a...": of a file's bytes, or of all the files below a folder with their names. Throws Error.
std::string file_digest(const std::filesystem::path& path);

// One line without its end; `recipe` is the recipe's digest.
std::string eval_row_json(const EvalRow& row, const std::string& recipe);
// Throws Error when it is no such line.
EvalRow parse_eval_row(const std::string& line, const std::string& where);

// All that a user can choose about a method, in one line: two methods with the same are the same.
std::string method_key(const MethodOptions& method);

// The file of --out. Held by one process at a time. Not thread-safe.
class EvalFile {
 public:
  // Opens or makes it; a last line that was cut off (a kill, a full disk) is taken off. Throws Error: it cannot be
  // written, another process has it, it has another recipe (naming what differs), a line of it is damaged.
  EvalFile(const std::filesystem::path& path, const EvalRecipe& recipe);
  ~EvalFile();
  EvalFile(const EvalFile&) = delete;
  EvalFile& operator=(const EvalFile&) = delete;

  const std::vector<EvalRow>& rows() const { return rows_; }  // those it had and those added
  bool has(const std::string& task, std::int64_t ctx_size, int sample, const MethodOptions& attn) const;
  void add(const EvalRow& row);  // written at once; throws Error

 private:
  void read(const std::string& content, const std::string& recipe);
  void write(const std::string& line);

  std::filesystem::path path_;
  std::string digest_;  // of the recipe
  int descriptor_ = -1;
  std::vector<EvalRow> rows_;
  std::set<std::string> keys_;
};

}  // namespace hayloft::runtime
