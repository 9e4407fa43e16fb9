#include "examples/hayloft/options/session.h"

#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/values.h"

namespace hayloft::cli {

void add_sampling_options(CLI::App& app, runtime::SamplerOptions& options) {
  const auto add = [&](const char* name, float& value, const char* type, const char* help) {
    const auto read = [name, &value](const std::string& text) {
      value = static_cast<float>(read_number(name, text, 0, 1e9));
    };
    add_text(app, name, type, read, help)->default_str(fmt::format("{}", value));
  };
  add("--temp", options.temperature, "T", "Temperature; 0 takes the most likely token");
  add("--top-p", options.top_p, "P", "Sample among likely tokens up to this share; 1 is off");
  add_seed(app, "-s,--seed", options.seed, "Seed of sampling: the same seed gives the same text");
  add_text(
      app, "--top-k", "K", [&options](const std::string& text) { options.top_k = read_int("--top-k", text, 0); },
      "Sample from the K most likely tokens; 0 is off")
      ->default_str("0");
  add("--min-p", options.min_p, "P", "Drop tokens less likely than this times the most likely one; 0 is off");
  common(app, Section::sampling, {"--temp", "--top-p", "--seed"});
  advanced(app, Section::sampling, {"--top-k", "--min-p"});
}

void add_prefill_options(CLI::App& app, runtime::SessionOptions& options) {
  using Kind = runtime::PrefillOptions::Kind;
  using Order = runtime::PrefillOptions::Order;
  runtime::PrefillOptions& prefill = options.prefill;
  add_choice<Kind>(app, "--prefill", {{"exact", Kind::exact}, {"window", Kind::window}, {"topk", Kind::topk}},
                   "Attention while the prompt is read: exact, or approximate", [&](Kind kind) { prefill.kind = kind; })
      ->default_str("exact");
  add_text(
      app, "--prefill-window", "W",
      [&](const std::string& text) { prefill.window = read_int("--prefill-window", text); },
      "window, topk: newest positions always attended")
      ->default_str("4096");
  add_text(
      app, "--prefill-sinks", "S",
      [&](const std::string& text) { prefill.sinks = read_int("--prefill-sinks", text, 0); },
      "window: first positions always attended")
      ->default_str("4");
  add_text(
      app, "--prefill-k", "K",
      [&](const std::string& text) {
        prefill.k = named("--prefill-k", [&] { return runtime::parse_budget(text, "--prefill-k"); });
      },
      "topk: positions attended besides the window: a number, or a share of the context as in 1%")
      ->default_str("1024");
  add_choice<Order>(
      app, "--prefill-order", {{"auto", Order::automatic}, {"chunk", Order::chunk}, {"layer", Order::layer}},
      "Whether a chunk passes every layer before the next chunk, or a layer reads every chunk before the next layer: "
      "the same result; auto takes what moves fewer bytes",
      [&](Order order) { prefill.order = order; })
      ->default_str("auto");
  add_text(
      app, "-b,--batch,--batch-size", "N",
      [&](const std::string& text) { options.chunk_tokens = read_int("--batch", text); },
      "Tokens of the prompt read at a time")
      ->default_str("2048");
  common(app, Section::prefill, {"--prefill"});
  advanced(app, Section::prefill, {"--prefill-window", "--prefill-sinks", "--prefill-k", "--prefill-order", "--batch"});
}

void add_predict_option(CLI::App& app, int& tokens) {
  add_text(
      app, "-n,--n-predict", "N", [&tokens](const std::string& text) { tokens = read_int("--n-predict", text); },
      "Tokens to generate at most")
      ->default_str(std::to_string(tokens));
  common(app, Section::context, {"--n-predict"});
}

}  // namespace hayloft::cli
