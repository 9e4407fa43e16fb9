#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/eval/eval.h"
#include "runtime/eval/json.h"
#include "runtime/eval/papers/sparq.h"
#include "runtime/eval/ruler/ruler.h"

namespace hayloft::cli {

// Says what an evaluation asks: the options that choose and shape its tasks, and the tasks made of them.
class EvalTasks {
 public:
  // Adds those of `options` that say how a task is run as well.
  void add_options(CLI::App& app, runtime::eval::EvalOptions& options);

  // Replaces groups (needle, ruler, text, sparq, all) by what they hold and there is input for; nothing asked for
  // becomes what the input suggests, or what the bundled model has learned. Throws Error on a task that is unknown, or
  // whose input lacks.
  void check(bool bundled);

  // `--chat-template model` is that of this one. Throws Error where it has none.
  void use_model(const std::filesystem::path& directory);

  std::string read_text() const;  // of --text; empty without one
  void say_what_the_bundled_model_cannot() const;
  void note_unread(const CLI::App& app) const;  // files and options given for tasks that were not asked for

  // Length by length, files of prepared samples last.
  std::vector<std::unique_ptr<runtime::eval::EvalTask>> make(const std::string& text,
                                                             const runtime::Tokenizer& tokenizer,
                                                             const std::vector<std::int64_t>& ctx_sizes,
                                                             int samples) const;

  // Enters what of a recipe the tasks decide.
  void enter(runtime::eval::EvalRecipe& recipe, int samples) const;

 private:
  std::vector<std::string> tasks_of_group(const std::string& group) const;  // nothing when it is none
  void check_task(const std::string& name) const;

  std::string haystack_, squad_, hotpotqa_, text_;
  std::string chat_template_ = "none";
  std::string own_template_;  // a digest of the model's, where that is used
  std::vector<std::string> prepared_;
  std::vector<std::string> tasks_;
  int scored_tokens_ = 128;
  std::optional<int> digits_;
  bool bundled_ = false;
  runtime::eval::RulerOptions ruler_;
  runtime::eval::SparqFiles sparq_;
};

}  // namespace hayloft::cli
