#include "examples/hayloft/options.h"

#include <algorithm>
#include <limits>

#include "offload/format.h"
#include "offload/host/topology.h"
#include "offload/list.h"
#include "runtime/attention/method_option_table.h"

namespace hayloft::cli {
namespace {

// What `read` returns. The message of what it throws begins with the option's name.
template <class Read>
auto named(const std::string& option, Read read) {
  try {
    return read();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.rfind(option, 0) == 0) throw;
    fail("{}: {}", option, message);
  }
}

// With the methods that use it in front, where not nearly all do.
std::string help_of(const runtime::MethodOption& option) {
  const std::vector<std::string_view> methods = split_list(option.methods, ' ');
  const bool nearly_all = methods.size() + 1 == runtime::method_names().size();
  return nearly_all ? std::string(option.help) : fmt::format("{}: {}", fmt::join(methods, ", "), option.help);
}

void note_unless_used(const runtime::MethodOption& option, const std::vector<runtime::MethodOptions>& methods) {
  std::string names;
  for (const runtime::MethodOptions& method : methods) {
    if (runtime::uses(method.name, option)) return;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", method.name);
  }
  fmt::print(stderr, "note: {} has no effect: not used by {}, but by {}\n", runtime::flag(option), names,
             fmt::join(split_list(option.methods, ' '), ", "));
}

}  // namespace

int read_int(const std::string& option, const std::string& text, int least) {
  const std::int64_t value = named(option, [&] { return parse_count(text); });
  constexpr int most = std::numeric_limits<int>::max();
  if (value < least || value > most) fail("{} {}: must be between {} and {}", option, text, least, most);
  return static_cast<int>(value);
}

std::uint64_t read_bytes(const std::string& option, const std::string& text) {
  return named(option, [&] { return parse_bytes(text); });
}

std::int64_t context_length(const std::string& text) {
  return read_int("--ctx-size", text);
}

std::vector<std::int64_t> context_lengths(const std::string& text) {
  std::vector<std::int64_t> lengths;
  for (const std::string_view item : split_list(text)) lengths.push_back(context_length(std::string(item)));
  return lengths;
}

runtime::plan::ShapeOptions read_shape(const std::string& text) {
  std::vector<std::int64_t> sizes;
  for (const std::string_view item : split_list(text)) sizes.push_back(read_int("--shape", std::string(item)));
  if (sizes.size() != 4) fail("--shape {}: is written as layers,heads,kv-heads,head-dim", text);
  runtime::plan::ShapeOptions shape;
  shape.layers = sizes[0];
  shape.heads = sizes[1];
  shape.kv_heads = sizes[2];
  shape.head_dim = sizes[3];
  return shape;
}

offload::ColumnFormat column_format(const std::string& text) {
  using offload::ColumnFormat;
  for (const ColumnFormat format : {ColumnFormat::f16, ColumnFormat::int8, ColumnFormat::int4}) {
    if (text == offload::name(format)) return format;
  }
  fail("--columns {}: must be one of f16, int8, int4", text);
}

void add_machine_options(CLI::App& app, MachineOptions& options) {
  add_choice<std::string>(app, "--device", {{"auto", "auto"}, {"cpu", "cpu"}, {"cuda", "cuda"}},
                          "What computes; auto takes a CUDA device where there is one",
                          [&](std::string device) { options.device = std::move(device); })
      ->default_str("auto");
  add_text(
      app, "--gpu-memory", "BYTES",
      [&](const std::string& text) {
        options.cuda.memory_bytes = read_bytes("--gpu-memory", text);
        if (options.cuda.memory_bytes == 0) fail("--gpu-memory {}: must be above 0", text);
      },
      "cuda: memory of the device that may be used, as in 16GiB [what is free, less a reserve]");
  add_choice<gpu::KvHost>(
      app, "--kv-host",
      {{"auto", gpu::KvHost::automatic},
       {"pinned", gpu::KvHost::pinned},
       {"staged", gpu::KvHost::staged},
       {"mmap", gpu::KvHost::mmap}},
      "cuda: how keys and values lie in host memory: pinned, so that the device reads them in place; "
      "copied through a small pinned buffer; or the same from the file they were saved to",
      [&](gpu::KvHost kv_host) { options.cuda.kv_host = kv_host; })
      ->default_str("auto");
  add_choice<gpu::Link>(
      app, "--link",
      {{"auto", gpu::Link::automatic}, {"sm", gpu::Link::sm}, {"copy", gpu::Link::copy}, {"both", gpu::Link::both}},
      "cuda: how columns of keys come over the link: read by the multiprocessors, by the copy engine, or by both",
      [&](gpu::Link link) { options.cuda.link = link; })
      ->default_str("auto");
  add_text(
      app, "-t,--threads", "N",
      [&](const std::string& text) {
        options.threads = read_int("--threads", text, 0);
        const int most = std::max(1024, 8 * offload::usable_processors());
        if (options.threads > most) fail("--threads {}: at most {}; 0 takes every processor", text, most);
      },
      "Threads; 0 takes every processor this process may use")
      ->default_str("0");
  add_text(
      app, "--host-memory", "BYTES",
      [&](const std::string& text) {
        options.host_memory = read_bytes("--host-memory", text);
        if (options.host_memory == 0) fail("--host-memory {}: must be above 0", text);
      },
      "Memory for keys and values, as in 16GiB [what is free, less a tenth]");
  add_text(
      app, "--block-tokens", "N",
      [&](const std::string& text) { options.block_tokens = read_int("--block-tokens", text); },
      "Tokens per block of the store, a power of two from 16")
      ->default_str(options.block_tokens == 0 ? "by length" : "4096");
  app.add_flag("-v,--verbose", options.verbose, "Say on standard error what is used");
  for (const char* name : {"--device", "--gpu-memory", "--kv-host", "--link", "--threads", "--host-memory",
                           "--block-tokens", "--verbose"}) {
    app.get_option(name)->group("Machine");
  }
}

void add_profile_option(CLI::App& app, MachineOptions& options) {
  app.add_option(
         "--profile", options.profile,
         "Machine profile that times are predicted by and --link auto follows [the one that hayloft link keeps]")
      ->type_name("FILE")
      ->take_last()
      ->group("Machine");
}

void add_attention_options(CLI::App& app, AttentionOptions& options, std::vector<std::string> default_attn) {
  options.attn = std::move(default_attn);
  app.add_option("--attn", options.attn,
                 fmt::format("{}; with options of its own as sparq:r=8:k=256; may be repeated",
                             fmt::join(runtime::method_names(), ", ")))
      ->type_name("METHOD,...")
      ->allow_extra_args(false)
      ->capture_default_str()
      ->group("Attention");
  for (const runtime::MethodOption& option : runtime::method_option_table()) {
    const std::string flag = runtime::flag(option);
    add_text(
        app, option.also.empty() ? flag : fmt::format("{},{}", flag, option.also), std::string(option.value),
        [&, flag](const std::string& text) {
          runtime::read_method_option(option, options.defaults, text, flag);
          options.flags.emplace(option.key);
        },
        help_of(option))
        ->default_str(std::string(option.standard))
        ->group("Attention");
  }
}

std::vector<runtime::MethodOptions> AttentionOptions::methods() const {
  std::vector<runtime::MethodOptions> methods;
  for (const std::string& list : attn) {
    for (const std::string& item : runtime::split_methods(list)) {
      methods.push_back(named("--attn", [&] { return runtime::parse_method(item, defaults); }));
    }
  }
  for (const std::string& key : flags) note_unless_used(*runtime::find_method_option(key), methods);
  return methods;
}

runtime::MethodOptions AttentionOptions::one_method(const char* subcommand) const {
  const std::vector<runtime::MethodOptions> all = methods();
  if (all.size() != 1) fail("--attn: {} takes one method, and {} are given", subcommand, all.size());
  return all.front();
}

void add_index_option(CLI::App& app, std::vector<std::string>& indices) {
  app.add_option("--index", indices,
                 "Save what a method keeps of the context with it: the index of ann:FACTORY, the positions of h2o:k=K; "
                 "may be repeated")
      ->type_name("METHOD,...")
      ->allow_extra_args(false);
}

std::vector<std::shared_ptr<const runtime::Method>> make_indices(const std::vector<std::string>& indices,
                                                                 int head_dim) {
  std::vector<std::shared_ptr<const runtime::Method>> methods;
  for (const std::string& list : indices) {
    for (const std::string& item : runtime::split_methods(list)) {
      const runtime::MethodOptions options = named("--index", [&] { return runtime::parse_method(item, {}); });
      if (options.name != "ann" && options.name != "h2o") {
        fail("--index {}: keeps nothing that would be worth saving; ann and h2o do", item);
      }
      methods.push_back(runtime::make_method(options, head_dim));
    }
  }
  return methods;
}

void add_sampling_options(CLI::App& app, runtime::SamplerOptions& options) {
  app.add_option("--temp", options.temperature, "Temperature; 0 takes the likeliest token")->type_name("T");
  app.add_option("--top-k", options.top_k, "Sample among the K likeliest tokens; 0 is off")->type_name("K");
  app.add_option("--top-p", options.top_p, "Sample among the likeliest tokens that reach this share; 1 is off")
      ->type_name("P");
  app.add_option("--min-p", options.min_p, "Drop tokens less likely than this times the likeliest; 0 is off")
      ->type_name("P");
  app.add_option("-s,--seed", options.seed, "The same seed gives the same text")->type_name("N");
  for (const char* name : {"--temp", "--top-k", "--top-p", "--min-p", "--seed"}) {
    app.get_option(name)->take_last()->capture_default_str()->group("Sampling");
  }
}

void add_prefill_options(CLI::App& app, runtime::SessionOptions& options) {
  using Kind = runtime::PrefillOptions::Kind;
  runtime::PrefillOptions& prefill = options.prefill;
  add_choice<Kind>(
      app, "--prefill", {{"exact", Kind::exact}, {"window", Kind::window}, {"topk", Kind::topk}},
      "What the prompt's tokens attend to: everything before them, or their window and the sinks, or their "
      "window and the best positions before it",
      [&](Kind kind) { prefill.kind = kind; })
      ->default_str("exact");
  add_text(
      app, "--prefill-window", "W",
      [&](const std::string& text) { prefill.window = read_int("--prefill-window", text); },
      "window, topk: newest positions that are always attended")
      ->default_str("4096");
  add_text(
      app, "--prefill-sinks", "S",
      [&](const std::string& text) { prefill.sinks = read_int("--prefill-sinks", text, 0); },
      "window: first positions that are always attended")
      ->default_str("4");
  add_text(
      app, "--prefill-k", "K",
      [&](const std::string& text) {
        prefill.k = named("--prefill-k", [&] { return runtime::parse_budget(text, "--prefill-k"); });
      },
      "topk: positions attended besides the window: a number or a share of the context, as in 1%")
      ->default_str("1024");
  using Order = runtime::PrefillOptions::Order;
  add_choice<Order>(
      app, "--prefill-order", {{"auto", Order::automatic}, {"chunk", Order::chunk}, {"layer", Order::layer}},
      "Every layer of a chunk before the next chunk, or every chunk of a layer before the next layer: the "
      "same result; auto takes what moves fewer bytes",
      [&](Order order) { prefill.order = order; })
      ->default_str("auto");
  add_text(
      app, "-b,--batch,--batch-size", "N",
      [&](const std::string& text) { options.chunk_tokens = read_int("--batch", text); },
      "Tokens of the prompt read at a time")
      ->default_str("2048");
  for (const char* name :
       {"--prefill", "--prefill-window", "--prefill-sinks", "--prefill-k", "--prefill-order", "--batch"}) {
    app.get_option(name)->group("Prefill");
  }
}

void add_columns_option(CLI::App& app, offload::ColumnFormat& columns) {
  add_text(
      app, "--columns", "f16|int8|int4", [&columns](const std::string& text) { columns = column_format(text); },
      "How the mirror of K that sparq searches is kept; integers take less memory and find nearly the same positions")
      ->default_str("f16")
      ->group("Machine");
}

}  // namespace hayloft::cli
