#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>

#include "examples/hayloft/command.h"
#include "examples/hayloft/environment.h"
#include "examples/hayloft/interrupt.h"
#include "examples/hayloft/options.h"
#include "examples/hayloft/text_output.h"
#include "offload/error.h"
#include "offload/format.h"
#include "runtime/progress.h"
#include "runtime/sampler.h"
#include "runtime/session.h"

// hayloft generate: text from a prompt, streamed.
namespace hayloft::cli {
namespace {

constexpr const char* examples = R"(Examples:
  hayloft generate -m models/Llama-3.2-1B -p "The hay is in the" -n 64
      the likeliest continuation, with exact attention
  hayloft generate -m models/Llama-3.2-1B -f book.txt -n 256 --temp 0.8 --top-p 0.95 --seed 7 --attn sparq --attn-k 512
      a book as the prompt, sampling, SparQ attention)";

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string read_prompt(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  if (std::filesystem::is_directory(path)) fail("--file {}: this is a folder", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("--file {}: cannot be read: {}", path, std::generic_category().message(errno));
  text << file.rdbuf();
  if (file.bad()) fail("--file {}: cannot be read to its end", path);
  return text.str();
}

// Text of tokens one by one. A tokenizer may treat the beginning of a text in its own way (SentencePiece drops its
// space), so each token is decoded behind the one before it.
class TextStream {
 public:
  TextStream(const runtime::Tokenizer& tokenizer, std::int32_t last_of_prompt)
      : tokenizer_(tokenizer), previous_(last_of_prompt) {}

  std::string push(std::int32_t token) {
    const std::string before = tokenizer_.decode({previous_});
    const std::string both = tokenizer_.decode({previous_, token});
    previous_ = token;
    return utf8_.push(std::string_view(both).substr(std::min(before.size(), both.size())));
  }
  std::string finish() { return utf8_.finish(); }

 private:
  const runtime::Tokenizer& tokenizer_;
  std::int32_t previous_;
  runtime::Utf8Stream utf8_;
};

class GenerateCommand : public Command {
 public:
  explicit GenerateCommand(CLI::App& app) {
    app.footer(examples);
    app.add_option("-m,--model", model_, "Model directory, Hugging Face layout")
        ->type_name("DIR")
        ->required()
        ->take_last();
    CLI::Option* const prompt = app.add_option("-p,--prompt", prompt_, "The text to go on from")->type_name("TEXT");
    CLI::Option* const file =
        app.add_option("-f,--file", file_, "A file with that text; - is standard input")->type_name("FILE");
    prompt->take_last()->excludes(file);
    file->take_last();
    add_text(
        app, "-n,--n-predict", "N", [this](const std::string& text) { predict_ = read_int("--n-predict", text); },
        "Tokens to generate at most")
        ->default_str("128");
    add_text(
        app, "-c,--ctx-size", "TOKENS", [this](const std::string& text) { context_ = context_length(text); },
        "Room for the prompt and what follows [what they need]");
    add_sampling_options(app, sampling_);
    add_attention_options(app, attention_, {"dense"});
    add_machine_options(app, machine_);
    add_batch_option(app, session_);
  }

  void check() override {
    if (prompt_.empty() && file_.empty()) fail("a prompt is needed: --prompt TEXT or --file FILE");
    method_ = attention_.one_method("generate");
    session_.cache.block_tokens = machine_.block_tokens;
    runtime::Sampler sampler(sampling_);  // names the option that is out of range
  }

  void run() override {
    const std::string text = file_.empty() ? prompt_ : read_prompt(file_);
    const Environment environment(machine_, model_);
    const std::unique_ptr<runtime::Method> method = runtime::make_method(method_, environment.model->config().head_dim);
    const std::vector<std::int32_t> prompt = environment.tokenizer->encode(text);
    if (prompt.empty()) fail("the prompt is empty: there is nothing to go on from");
    check_room(environment, static_cast<std::int64_t>(prompt.size()));

    runtime::Session session(*environment.model, *environment.arena, session_);
    const Clock::time_point start = Clock::now();
    read(session, std::span(prompt).first(prompt.size() - 1));
    prefill_seconds_ = seconds_since(start);
    try {
      decode(environment, session, *method, prompt.back());
    } catch (const Interrupted&) {
      summarise(session, prompt.size());
      throw;
    }
    summarise(session, prompt.size());
  }

 private:
  // Refuses before the work what would not fit at its end.
  void check_room(const Environment& environment, std::int64_t prompt) const {
    const std::int64_t needed = prompt + predict_;
    if (context_ > 0 && needed > context_) {
      fail("--ctx-size {}: the prompt's {} tokens and {} to generate need {}", context_, prompt, predict_, needed);
    }
    const std::int64_t tokens = std::max(needed, context_);
    const std::uint64_t bytes = runtime::host_bytes(environment.model->config(), session_.cache, tokens);
    const std::uint64_t budget = environment.arena->budget_bytes();
    if (bytes > budget) {
      fail(
          "a context of {} tokens needs {} of host memory for keys and values, and {} may be used; shorten it or raise "
          "--host-memory",
          tokens, format_bytes(bytes), format_bytes(budget));
    }
  }

  void read(runtime::Session& session, std::span<const std::int32_t> tokens) const {
    runtime::Progress progress(runtime::stderr_progress(), "prompt", "tokens",
                               static_cast<std::int64_t>(tokens.size()));
    session.append(tokens, [&](std::int64_t done, std::int64_t) {
      check_interrupted();
      progress.update(done);
    });
  }

  void decode(const Environment& environment, runtime::Session& session, const runtime::Method& method,
              std::int32_t token) {
    const std::vector<std::int32_t>& ends = environment.model->config().eos_tokens;
    runtime::Sampler sampler(sampling_);
    TextStream stream(*environment.tokenizer, token);
    for (generated_ = 0; generated_ < predict_; ++generated_) {
      check_interrupted();
      const Clock::time_point start = Clock::now();
      token = sampler.sample(session.step(token, method));
      decode_seconds_ += seconds_since(start);
      if (std::find(ends.begin(), ends.end(), token) != ends.end()) break;
      print(stream.push(token));
    }
    print(stream.finish() + "\n");
  }

  void summarise(const runtime::Session& session, std::size_t prompt) const {
    std::string line = fmt::format("\nprompt: {} tokens", prompt);
    if (prompt > 1) line += fmt::format(", {:.0f} tokens/s", static_cast<double>(prompt - 1) / prefill_seconds_);
    line += fmt::format("\ngenerated: {} tokens", generated_);
    if (session.steps() > 0) {
      const auto steps = static_cast<std::uint64_t>(session.steps());
      line += fmt::format(", {:.2f} ms/token\nread per token:", decode_seconds_ * 1000 / static_cast<double>(steps));
      for (int place = 0; place < runtime::place_count; ++place) {
        const auto which = static_cast<runtime::Place>(place);
        line += fmt::format("{} {} {}", place > 0 ? "," : "", runtime::name(which),
                            format_bytes(session.counters().total(which) / steps));
      }
    }
    fmt::print(stderr, "{}\n", line);
  }

  std::string model_;
  std::string prompt_;
  std::string file_;
  int predict_ = 128;
  std::int64_t context_ = 0;  // 0: what prompt and predict_ need
  runtime::SamplerOptions sampling_;
  AttentionOptions attention_;
  MachineOptions machine_;
  runtime::SessionOptions session_;
  runtime::MethodOptions method_;

  double prefill_seconds_ = 0;
  double decode_seconds_ = 0;
  int generated_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_generate_command(CLI::App& app) {
  return std::make_unique<GenerateCommand>(app);
}

}  // namespace hayloft::cli
