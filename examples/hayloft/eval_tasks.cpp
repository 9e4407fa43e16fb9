#include "examples/hayloft/eval_tasks.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "examples/hayloft/options/chat.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/values.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/text_input.h"
#include "offload/error.h"
#include "offload/text/list.h"

namespace hayloft::cli {
namespace {

// The digits that the bundled model has learned, and answers in full (docs/eval.md).
constexpr int bundled_digits = 6;
constexpr const char* bundled_tasks[] = {"niah_single_1", "niah_single_2", "niah_multikey_1"};

std::vector<std::string> words_of(const std::string& text) {
  const std::vector<std::string_view> words = split_list(text);
  return {words.begin(), words.end()};
}

}  // namespace

void EvalTasks::add_options(CLI::App& app, runtime::eval::EvalOptions& options) {
  const auto add_path = [&](const char* name, auto& path, const char* help) {
    app.add_option(name, path, help)->type_name("FILE")->take_last();
  };
  add_path("--text", text_, "Text for perplexity and repetition");
  add_path("--haystack", haystack_, "Text to hide needles in, a file or a folder [made by a grammar]");
  add_path("--squad", squad_, "Questions of qa_1 and sparq_squad: SQuAD, or a file of its shape");
  add_path("--hotpotqa", hotpotqa_, "Questions of qa_2: HotpotQA, distractor setting");
  add_path("--triviaqa", sparq_.triviaqa, "Questions of sparq_triviaqa: rows of TriviaQA's rc, a JSON object a line");
  add_path("--cnn-dailymail", sparq_.summaries, "Articles of sparq_cnn_dailymail: its rows, a JSON object a line");
  app.add_option("--jsonl", prepared_, "Samples prepared by RULER's scripts; may be repeated")
      ->type_name("FILE")
      ->allow_extra_args(false);
  add_text(
      app, "--tasks", "TASK,...", [this](const std::string& text) { tasks_ = words_of(text); },
      "RULER's, depths, perplexity, repetition, sparq_squad, ...; needle, ruler, text, sparq, all [what model and "
      "files "
      "are for]");
  add_text(
      app, "--samples", "N", [&options](const std::string& text) { options.samples = read_int("--samples", text); },
      "Samples of each task at each length")
      ->default_str("10");
  add_seed(app, "-s,--seed", ruler_.seed, "Seed of everything random");
  add_text(
      app, "--chat-template", "NAME|TEXT",
      [this](const std::string& text) {
        chat_template_ = text;
        if (text != "model") ruler_.chat = runtime::ChatTemplate::named(text);
      },
      "Put around RULER's prompts: none, model (its own chat template), llama-2, llama-3, chatml, or a text that has "
      "{task} in it")
      ->default_str("none");
  add_text(
      app, "--digits", "N", [this](const std::string& text) { digits_ = read_int("--digits", text); },
      "Digits of hidden numbers [7; the bundled model, which has learned 6: 6]");
  add_text(
      app, "--scored-tokens", "N",
      [this](const std::string& text) { scored_tokens_ = read_int("--scored-tokens", text); },
      "perplexity: tokens predicted; repetition: tokens to copy")
      ->default_str("128");
  app.add_flag("--agreement", options.agreement,
               "Also compare every method with dense attention, step by step: top-1 agreement and KL divergence");
  app.add_flag_callback(
      "--no-recall", [&options] { options.fidelity_steps = 0; },
      "Do not compare the first steps with exact attention: no recall, mass and error");
  common(app, Section::text, {"--text", "--haystack", "--jsonl", "--chat-template"});
  advanced(app, Section::text, {"--squad", "--hotpotqa", "--triviaqa", "--cnn-dailymail"});
  common(app, Section::task, {"--tasks", "--samples", "--seed"});
  advanced(app, Section::task, {"--digits", "--scored-tokens", "--agreement", "--no-recall"});
}

void EvalTasks::check(bool bundled) {
  bundled_ = bundled;
  ruler_.digits = digits_.value_or(bundled ? bundled_digits : ruler_.digits);
  ruler_.haystack = haystack_;
  ruler_.squad = squad_;
  ruler_.hotpotqa = hotpotqa_;
  sparq_.squad = squad_;
  sparq_.text = text_;  // its name, until read
  if (ruler_.digits > 18) fail("--digits {}: must be between 1 and 18", ruler_.digits);
  std::vector<std::string> asked = std::exchange(tasks_, {});
  if (asked.empty() && !text_.empty()) asked = {"text"};
  if (asked.empty() && prepared_.empty()) {
    asked = bundled ? std::vector<std::string>(std::begin(bundled_tasks), std::end(bundled_tasks))
                    : std::vector<std::string>{"needle"};
  }
  for (const std::string& name : asked) {
    std::vector<std::string> named = tasks_of_group(name);
    if (named.empty()) named = {name};
    for (std::string& task : named) {
      check_task(task);
      if (std::find(tasks_.begin(), tasks_.end(), task) == tasks_.end()) tasks_.push_back(std::move(task));
    }
  }
}

void EvalTasks::note_unread(const CLI::App& app) const {
  const auto note_unless_read = [&](const char* option, auto reads) {
    if (app.count(option) == 0 || std::ranges::any_of(tasks_, reads)) return;
    note("note: {} has no effect: no task that was asked for reads it\n", option);
  };
  const auto is = [](const char* one, const char* other) {
    return [=](const std::string& task) { return task == one || task == other; };
  };
  note_unless_read("--squad", is("qa_1", "sparq_squad"));
  note_unless_read("--hotpotqa", is("qa_2", "qa_2"));
  note_unless_read("--triviaqa", is("sparq_triviaqa", "sparq_triviaqa"));
  note_unless_read("--cnn-dailymail", is("sparq_cnn_dailymail", "sparq_cnn_dailymail"));
  note_unless_read("--haystack",
                   [](const std::string& task) { return task == "depths" || runtime::eval::hides_in_text(task); });
  note_unless_read("--text", [this](const std::string& task) {
    runtime::eval::SparqFiles text;
    text.text = text_;
    return task == "perplexity" || task == "repetition" ||
           (runtime::eval::is_sparq_task(task) && runtime::eval::has_input(task, text));
  });
  note_unless_read("--digits",
                   [](const std::string& task) { return task == "depths" || runtime::eval::hides_numbers(task); });
  note_unless_read("--scored-tokens", is("perplexity", "repetition"));
  note_unless_read("--seed", [](const std::string& task) { return task != "perplexity"; });
  note_unless_read("--ctx-size",
                   [](const std::string&) { return true; });  // prepared samples have lengths of their own
  if (prepared_.empty()) {
    note_unless_read("--exact", [](const std::string& task) { return task != "perplexity" && task != "sparq_bpc"; });
  }
  if (chat_template_ != "none") {
    note_unless_read("--chat-template",
                     [](const std::string& task) { return runtime::eval::find_ruler_task(task) != nullptr; });
  }
}

std::vector<std::string> EvalTasks::tasks_of_group(const std::string& group) const {
  std::vector<std::string> tasks;
  if (group == "needle" || group == "ruler" || group == "all") {
    for (const runtime::eval::RulerTask& task : runtime::eval::ruler_tasks()) {
      if (group == "needle" && task.name.rfind("niah", 0) != 0) continue;
      if ((task.name == "qa_1" && squad_.empty()) || (task.name == "qa_2" && hotpotqa_.empty())) continue;
      tasks.emplace_back(task.name);
    }
  }
  if (group == "sparq") {
    std::ranges::copy_if(runtime::eval::sparq_tasks(), std::back_inserter(tasks),
                         [&](const std::string& task) { return runtime::eval::has_input(task, sparq_); });
  }
  if (group == "text" || (group == "all" && !text_.empty())) tasks.insert(tasks.end(), {"perplexity", "repetition"});
  return tasks;
}

void EvalTasks::check_task(const std::string& name) const {
  if (name == "perplexity" || name == "repetition") {
    if (text_.empty()) fail("--tasks {}: needs --text", name);
    return;
  }
  if (name == "depths") return;
  if (name == "sparq") fail("--tasks sparq: needs --squad, --triviaqa, --cnn-dailymail or --text");
  if (runtime::eval::is_sparq_task(name)) {
    if (runtime::eval::has_input(name, sparq_)) return;
    fail("--tasks {}: needs {}", name,
         name == "sparq_squad"           ? "--squad"
         : name == "sparq_triviaqa"      ? "--triviaqa"
         : name == "sparq_cnn_dailymail" ? "--cnn-dailymail"
                                         : "--text");
  }
  if (!runtime::eval::find_ruler_task(name)) {
    std::string known;
    for (const runtime::eval::RulerTask& task : runtime::eval::ruler_tasks()) known += fmt::format("{}, ", task.name);
    for (const std::string& task : runtime::eval::sparq_tasks()) known += task + ", ";
    fail("--tasks {}: unknown task; one of {}depths, perplexity, repetition, or needle, ruler, text, sparq, all", name,
         known);
  }
  if (name == "qa_1" && squad_.empty()) fail("--tasks qa_1: its questions come from a file; name it with --squad");
  if (name == "qa_2" && hotpotqa_.empty()) {
    fail("--tasks qa_2: its questions come from a file; name it with --hotpotqa");
  }
}

void EvalTasks::use_model(const std::filesystem::path& directory) {
  if (chat_template_ != "model") return;
  ruler_.chat = chosen_template({}, directory);
  own_template_ = runtime::eval::text_digest(ruler_.chat.sources());
}

std::string EvalTasks::read_text() const {
  return text_.empty() ? "" : cli::read_text("--text", text_);
}

void EvalTasks::say_what_the_bundled_model_cannot() const {
  if (!bundled_) return;
  const auto is_niah = [](const std::string& task) { return task.rfind("niah", 0) == 0; };
  if (std::any_of(tasks_.begin(), tasks_.end(), is_niah) && ruler_.digits != bundled_digits) {
    note("note: the bundled model has learned numbers of {0} digits: --digits {0}\n", bundled_digits);
  }
  std::string others;
  for (const std::string& task : tasks_) {
    if (!runtime::eval::find_ruler_task(task)) continue;
    const bool learned = std::find(std::begin(bundled_tasks), std::end(bundled_tasks), task) != std::end(bundled_tasks);
    if (!learned) others += (others.empty() ? "" : ", ") + task;
  }
  if (others.empty()) return;
  note("note: the bundled model was not taught {}: what it misses there says nothing of a method; -m names another\n",
       others);
}

std::vector<std::unique_ptr<runtime::eval::EvalTask>> EvalTasks::make(const std::string& text,
                                                                      const runtime::Tokenizer& tokenizer,
                                                                      const std::vector<std::int64_t>& ctx_sizes,
                                                                      int samples) const {
  std::vector<std::unique_ptr<runtime::eval::EvalTask>> tasks;
  const auto tokens = runtime::eval::read_eval_text(text, tokenizer);
  runtime::eval::SparqFiles sparq = sparq_;
  sparq.text = text;
  for (const std::int64_t length : ctx_sizes) {
    for (const std::string& name : tasks_) {
      if (name == "perplexity") {
        tasks.push_back(runtime::eval::make_perplexity(tokens, length, samples, scored_tokens_));
      } else if (name == "repetition") {
        tasks.push_back(
            runtime::eval::make_repetition(tokens, tokenizer, length, samples, scored_tokens_, ruler_.seed));
      } else if (name == "depths") {
        tasks.push_back(
            runtime::eval::make_depths({ruler_.seed, samples, ruler_.digits, haystack_}, tokenizer, length));
      } else if (runtime::eval::is_sparq_task(name)) {
        tasks.push_back(runtime::eval::make_sparq_eval(name, sparq, tokenizer, length, ruler_.seed));
      } else {
        tasks.push_back(runtime::eval::make_ruler_eval(name, ruler_, tokenizer, length));
      }
    }
  }
  for (const std::string& file : prepared_) {
    std::unique_ptr<runtime::eval::EvalTask> task = runtime::eval::make_prepared_eval(file, tokenizer);
    const auto same = [&](const auto& other) {
      return other->name() == task->name() && other->ctx_size() == task->ctx_size();
    };
    if (std::ranges::any_of(tasks, same)) {
      fail("--jsonl {}: there is a task {} of {} tokens already; put the samples of one set into one file", file,
           task->name(), task->ctx_size());
    }
    tasks.push_back(std::move(task));
  }
  return tasks;
}

void EvalTasks::enter(runtime::eval::EvalRecipe& recipe, int samples) const {
  const auto digest = [](const char* option, const std::string& path) {
    return path.empty() ? "" : runtime::eval::file_digest(option, path);
  };
  recipe.seed = ruler_.seed;
  recipe.digits = ruler_.digits;
  recipe.scored_tokens = scored_tokens_;
  if (std::count(tasks_.begin(), tasks_.end(), "depths") > 0) recipe.needles = samples;
  recipe.chat_template = chat_template_ + (own_template_.empty() ? "" : " " + own_template_);
  recipe.haystack = digest("--haystack", haystack_);
  recipe.squad = digest("--squad", squad_);
  recipe.hotpotqa = digest("--hotpotqa", hotpotqa_);
  recipe.triviaqa = digest("--triviaqa", sparq_.triviaqa);
  recipe.cnn_dailymail = digest("--cnn-dailymail", sparq_.summaries);
  recipe.text = digest("--text", text_);
  for (const std::string& file : prepared_) recipe.prepared.push_back(digest("--jsonl", file));
}

}  // namespace hayloft::cli
