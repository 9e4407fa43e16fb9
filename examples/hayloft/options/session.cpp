#include "examples/hayloft/options/session.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/values.h"
#include "examples/hayloft/process/messages.h"
#include "offload/error.h"
#include "offload/text/list.h"

namespace hayloft::cli {
namespace {

constexpr int most_token = std::numeric_limits<std::int32_t>::max();

std::int32_t read_token(const char* option, std::string_view text) {
  std::int32_t token = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), token);
  if (error == std::errc() && stop == text.data() + text.size() && token >= 0) return token;
  fail("{}: '{}' is no id of a token, which is a whole number from 0 to {}", option, text, most_token);
}

// ID+BIAS or ID-BIAS, as llama.cpp has it; -inf forbids the token.
std::pair<std::int32_t, float> read_bias(const std::string& text) {
  constexpr const char* option = "--logit-bias";
  const std::size_t sign = text.find_first_of("+-", 1);
  if (sign == std::string::npos) fail("{} {}: a token id and what is added to its logit, as in 1234-5", option, text);
  const std::int32_t token = read_token(option, std::string_view(text).substr(0, sign));
  const std::string bias = text.substr(text[sign] == '+' ? sign + 1 : sign);
  if (bias == "-inf") return {token, -std::numeric_limits<float>::infinity()};
  return {token, static_cast<float>(read_number(option, bias, -1e9, 1e9))};
}

// Checks that need more than one token.
void add_rule_options(CLI::App& app, runtime::LogitRules& rules) {
  const auto add = [&](const char* name, float& value, double least, const char* help) {
    const auto read = [name, &value, least](const std::string& text) {
      value = static_cast<float>(read_number(name, text, least, 1e9));
    };
    add_text(app, name, "P", read, help)->default_str(fmt::format("{}", value));
  };
  add("--repeat-penalty", rules.repetition_penalty, 1e-9,
      "Divide the logits of tokens that the text has by this, or multiply them where they are below 0; 1 is off");
  add_text(
      app, "--repeat-last-n", "N",
      [&rules](const std::string& text) { rules.repetition_window = read_int("--repeat-last-n", text); },
      "How many of the newest tokens --repeat-penalty goes by [all]");
  add("--frequency-penalty", rules.frequency_penalty, -1e9,
      "Subtracted from a token's logit for each time that the answer has it; 0 is off");
  add("--presence-penalty", rules.presence_penalty, -1e9,
      "Subtracted from the logits of tokens that the answer has; 0 is off");
  add_text(
      app, "--no-repeat-ngram", "N",
      [&rules](const std::string& text) { rules.no_repeat_ngram_size = read_int("--no-repeat-ngram", text, 0); },
      "Let no run of N tokens come twice; 0 is off")
      ->default_str("0");
  add_text(
      app, "--suppress-tokens", "IDS",
      [&rules](const std::string& text) {
        rules.suppress_tokens.clear();
        for (const std::string_view id : split_list(text, ',')) {
          rules.suppress_tokens.push_back(read_token("--suppress-tokens", id));
        }
      },
      "Ids of tokens that are never drawn, with commas between them");
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [&rules](const std::vector<std::string>& texts) {
           rules.logit_bias.clear();
           for (const std::string& text : texts) rules.logit_bias.push_back(read_bias(text));
         },
         "Add to the logit of a token, as in 1234+1.5 or 1234-inf; may be given several times")
      ->type_name("ID+BIAS")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  advanced(app, Section::sampling,
           {"--repeat-penalty", "--repeat-last-n", "--frequency-penalty", "--presence-penalty", "--no-repeat-ngram",
            "--suppress-tokens", "--logit-bias"});
}

// Reads what stands behind --prefill: the way, and how a sparse one chooses.
runtime::PrefillOptions read_prefill(const std::string& text) {
  using Kind = runtime::PrefillOptions::Kind;
  static constexpr std::array kinds{Kind::exact, Kind::sparse, Kind::window, Kind::topk};
  const std::size_t colon = std::min(text.find(':'), text.size());
  const auto found =
      std::ranges::find(kinds, text.substr(0, colon), [](Kind each) { return std::string(runtime::name(each)); });
  if (found == kinds.end()) fail("--prefill {}: must be one of exact, sparse, window, topk", text);
  runtime::PrefillOptions prefill;
  prefill.kind = *found;
  if (colon == text.size()) return prefill;
  const std::size_t equals = std::min(text.find('=', colon), text.size());
  const std::string by = text.substr(colon + 1, equals - colon - 1);
  gpu::SparseCausal& sparse = prefill.sparse;
  double* const share = by == "mass"       ? &sparse.mass
                        : by == "density"  ? &sparse.density
                        : by == "fidelity" ? &sparse.fidelity
                                           : nullptr;
  if (*found != Kind::sparse || share == nullptr || equals == text.size()) {
    fail("--prefill {}: behind sparse: may stand mass=, density= or fidelity=, as in sparse:mass=98%; nothing else",
         text);
  }
  *share = read_share("--prefill", text.substr(equals + 1));
  if (!(*share > 0 && *share <= 1)) fail("--prefill {}: a share above 0% and up to 100%", text);
  return prefill;
}

}  // namespace

void add_sampling_options(CLI::App& app, runtime::SamplerOptions& options) {
  const auto add = [&](const char* name, float& value, const char* type, const char* help) {
    const auto read = [name, &value](const std::string& text) {
      const double number = read_number(name, text, 0, 1e9);
      value = static_cast<float>(number);
      if (value == 0 && number > 0) fail("{} {}: is too close to 0 to be told from it; write 0 for that", name, text);
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
  add_rule_options(app, options.rules);
  app.add_flag_callback(
      "--no-model-sampling", [] {}, "Pass over how the model's makers would have tokens drawn");
  advanced(app, Section::sampling, {"--no-model-sampling"});
}

void note_unused_sampling(const CLI::App& app, const runtime::SamplerOptions& options) {
  if (app.get_option("--repeat-last-n")->count() > 0 && options.rules.repetition_penalty == 1) {
    note("note: --repeat-last-n has no effect: it belongs to --repeat-penalty, which is off\n");
  }
  if (options.temperature != 0) return;
  std::vector<std::string> given;
  for (const char* option : {"--top-k", "--top-p", "--min-p", "--seed"}) {
    if (app.get_option(option)->count() > 0) given.emplace_back(option);
  }
  if (given.empty()) return;
  note("note: {} {} no effect: the temperature is 0, which takes the most likely token; --temp sets another\n",
       fmt::join(given, ", "), given.size() == 1 ? "has" : "have");
}

void add_prefill_options(CLI::App& app, runtime::SessionOptions& options, std::vector<runtime::PrefillOptions>* ways) {
  using Order = runtime::PrefillOptions::Order;
  runtime::PrefillOptions& prefill = options.prefill;
  const std::string help =
      "Attention while the prompt is read: exact, sparse (:mass=98%, :fidelity=97% or :density=5%), window or topk";
  if (ways != nullptr) {
    add_text(
        app, "--prefill", "HOW,...",
        [ways](const std::string& text) {
          ways->clear();
          for (const std::string_view item : split_list(text)) ways->push_back(read_prefill(std::string(item)));
        },
        help)
        ->take_last()
        ->default_str("exact");
  } else {
    add_text(
        app, "--prefill", "HOW",
        [&](const std::string& text) {
          const runtime::PrefillOptions way = read_prefill(text);
          prefill.kind = way.kind;
          prefill.sparse = way.sparse;
        },
        help)
        ->default_str("exact");
  }
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

void note_unused_prefill(const CLI::App& app, std::span<const runtime::PrefillOptions> ways) {
  using Kind = runtime::PrefillOptions::Kind;
  const auto note_unless_used = [&](const char* option, std::initializer_list<Kind> users) {
    if (app.get_option(option)->count() == 0) return;
    std::vector<std::string> names, by;
    for (const runtime::PrefillOptions& way : ways) {
      if (std::ranges::find(users, way.kind) != users.end()) return;
      names.emplace_back(runtime::name(way.kind));
    }
    for (const Kind user : users) by.emplace_back(runtime::name(user));
    note("note: {} has no effect: not used by --prefill {}, but by {}\n", option, fmt::join(names, ","),
         fmt::join(by, ", "));
  };
  note_unless_used("--prefill-window", {Kind::window, Kind::topk});
  note_unless_used("--prefill-sinks", {Kind::window});
  note_unless_used("--prefill-k", {Kind::topk});
}

void add_predict_option(CLI::App& app, int& tokens) {
  add_text(
      app, "-n,--n-predict", "N", [&tokens](const std::string& text) { tokens = read_int("--n-predict", text); },
      "Tokens to generate at most")
      ->default_str(std::to_string(tokens));
  common(app, Section::context, {"--n-predict"});
}

void add_answers_option(CLI::App& app, int& answers) {
  add_text(
      app, "--answers", "N", [&answers](const std::string& text) { answers = read_int("--answers", text); },
      "So many answers behind one reading, each by a seed of its own: --seed, one more, and so on")
      ->default_str("1");
  advanced(app, Section::sampling, {"--answers"});
}

}  // namespace hayloft::cli
