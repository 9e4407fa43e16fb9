#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "runtime/eval/eval.h"
#include "runtime/eval/json.h"

// Writes the file of `--out`: a line of JSON for the recipe, then one for each row as soon as it is there, so that a
// run can go on where it was ended.
namespace hayloft::runtime::eval {

// The file of --out. Held by one process at a time. Not thread-safe.
class EvalFile {
 public:
  // Opens or makes it; a last line that was cut off (a kill, a full disk) is taken off. Throws Error: it cannot be
  // written, is no regular file, another process has it, it has another recipe (naming what differs), a line of it is
  // damaged.
  EvalFile(const std::filesystem::path& path, const EvalRecipe& recipe);
  ~EvalFile();
  EvalFile(const EvalFile&) = delete;
  EvalFile& operator=(const EvalFile&) = delete;

  const std::vector<EvalRow>& rows() const { return rows_; }  // those it had and those added
  bool has(const std::string& task, std::int64_t ctx_size, int sample, const std::string& prefill,
           const MethodOptions& attn) const;
  void add(const EvalRow& row);  // written at once; throws Error

 private:
  void require_regular() const;
  void read(const std::string& content, const std::string& recipe);
  void write(const std::string& line);

  std::filesystem::path path_;
  std::string digest_;  // of the recipe
  int descriptor_ = -1;
  std::vector<EvalRow> rows_;
  std::set<std::string> keys_;
};

}  // namespace hayloft::runtime::eval
