#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "examples/hayloft/command.h"
#include "examples/hayloft/options/attention.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/machine.h"
#include "examples/hayloft/options/values.h"
#include "examples/hayloft/process/environment.h"
#include "examples/hayloft/process/interrupt.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/text_output.h"
#include "offload/error.h"
#include "offload/text/format.h"
#include "offload/text/list.h"
#include "runtime/decode/device_memory.h"
#include "runtime/eval/reach.h"
#include "runtime/machine/attention_bench.h"
#include "runtime/machine/profile.h"

// hayloft bench: what attention costs per token at the shape of a model, over a store of noise.
namespace hayloft::cli {
namespace {

constexpr const char* bench_examples = R"(Examples:
  hayloft bench --shape 32,32,8,128 --ctx-size 128k,1M --attn dense,sparq:k=512 --columns f16,int4
  hayloft bench --shape 4,8,2,64 --ctx-size 64k --attn sparq,topk --json -)";

struct Measured {
  std::int64_t tokens;
  offload::ColumnFormat columns;
  int measured_layers;
  std::uint64_t host_bytes;
  runtime::plan::AttentionBenchRow row;
};

class BenchCommand : public Command {
 public:
  explicit BenchCommand(CLI::App& app) {
    app.footer(bench_examples);
    add_text(
        app, "--shape", "LAYERS,HEADS,KV-HEADS,HEAD-DIM",
        [this](const std::string& text) {
          const runtime::plan::ShapeOptions shape = read_shape(text);
          bench_.layers = static_cast<int>(shape.layers);
          bench_.query_heads = static_cast<int>(shape.heads);
          bench_.kv_heads = static_cast<int>(shape.kv_heads);
          bench_.head_dim = static_cast<int>(shape.head_dim);
        },
        "Shape of the model whose attention is timed; the default is that of Llama-3-8B")
        ->default_str("32,32,8,128");
    add_context_lengths_option(app, lengths_);
    add_number(app, "--seconds", "S", bench_.seconds, 0.01, 3600, "About how long to measure each method");
    add_attention_options(app, attention_, {"dense", "sparq:k=512"});
    add_text(
        app, "--columns", "FORMAT,...", [this](const std::string& text) { read_columns(text); },
        "Formats of the key columns to measure: " + offload::column_format_names())
        ->default_str("f16");
    common(app, Section::model, {"--shape"});
    common(app, Section::task, {"--seconds"});
    common(app, Section::memory, {"--columns"});
    add_rows_option(app, bench_.rows);
    machine_.block_tokens = 0;
    add_machine_options(app, machine_);
    add_profile_option(app, machine_);
    add_json_option(app, json_, "Write the figures as JSON, to a file after every method");
  }

  void check() override {
    bench_.methods = attention_.methods();
    if (bench_.query_heads % bench_.kv_heads != 0) {
      fail("--shape: {} query heads cannot be shared out among {} KV heads", bench_.query_heads, bench_.kv_heads);
    }
    for (const runtime::MethodOptions& method : bench_.methods) {
      runtime::make_method(method, bench_.head_dim)->require_layers(bench_.layers);
    }
    for (const std::int64_t tokens : lengths_) {
      for (const offload::ColumnFormat format : columns_) {
        offload::BlockLayout({1, bench_.kv_heads, bench_.head_dim, block_tokens(tokens), format, bench_.rows});
      }
    }
  }

  void run() override {
    const TextOutput json(json_);
    json.check();
    const Environment environment(machine_);
    rates_ = read_rates(environment);
    const auto rates = runtime::plan::machine_rates(environment.profile(), environment.backend->name(), bench_.layers);
    for (runtime::MethodOptions& method : bench_.methods) method.rates = rates;
    for (const std::int64_t tokens : lengths_) {
      for (const offload::ColumnFormat format : columns_) {
        bench_.tokens = tokens;
        bench_.block_tokens = block_tokens(tokens);
        bench_.columns = format;
        const auto keep = [&](const runtime::plan::AttentionBenchResult& so_far) {
          announce(so_far);
          if (so_far.rows.empty()) return;
          all_.push_back({tokens, format, so_far.measured_layers, so_far.host_bytes, so_far.rows.back()});
          if (json.wanted() && !json.to_stdout()) json.write(as_json(environment, false));
        };
        runtime::plan::bench_attention(*environment.backend, *environment.arena, bench_,
                                       {[](const std::string&) { check_interrupted(); }, keep});
      }
    }
    if (!json.to_stdout()) print(table());
    json.write(as_json(environment, true));
    say_device_memory(*environment.backend);
  }

 private:
  int block_tokens(std::int64_t tokens) const {
    return machine_.block_tokens > 0 ? machine_.block_tokens : runtime::eval::block_tokens_for(tokens);
  }

  void read_columns(const std::string& text) {
    columns_.clear();
    for (const std::string_view item : split_list(text)) columns_.push_back(column_format(std::string(item)));
  }

  // Says how fast a profile of this device says that the store can be read, in GB/s.
  struct ReadRates {
    double link;  // by what computes
    double near;  // by what searches beside the memory
  };
  static std::optional<ReadRates> read_rates(const Environment& environment) {
    const std::string device = environment.backend->name();
    const std::optional<runtime::plan::MachineProfile>& profile = environment.profile();
    if (!profile) return std::nullopt;
    if (device == "cpu") return ReadRates{profile->near_read, profile->near_read};
    if (!profile->link_to_device) return std::nullopt;
    return ReadRates{*profile->link_to_device, profile->near_read};
  }

  // Returns what the bytes of a step take at those rates, the search first.
  double floor_ms(const runtime::plan::AttentionBenchRow& row) const {
    const auto ms = [&](runtime::Place place, double rate) {
      return static_cast<double>(row.counters.total(place)) / rate / 1e6;
    };
    return ms(runtime::Place::link, rates_->link) + ms(runtime::Place::near, rates_->near);
  }

  // One line of how far it has come: filling memory is most of the time of a long context.
  void announce(const runtime::plan::AttentionBenchResult& so_far) const {
    const std::string what = fmt::format("{} tokens, {} columns", format_count(bench_.tokens), name(bench_.columns));
    if (so_far.rows.empty()) {
      note("{}: {} of {} layers, {} filled in {:.1f} s\n", what, so_far.measured_layers, bench_.layers,
           format_bytes(so_far.host_bytes), so_far.fill_seconds);
    } else {
      const runtime::plan::AttentionBenchRow& row = so_far.rows.back();
      note("{}, {}: {:.2f} ms/token, {} steps\n", what, runtime::method_label(row.attn), row.ms, row.steps);
    }
  }

  // In hundredths, rounded down, so that they never add up to more than the whole does as it is printed.
  static std::string parts(const runtime::plan::AttentionBenchRow& row) {
    std::string text;
    const auto add = [&](const std::string& name, std::int64_t hundredths) {
      text += fmt::format("{}{} {}.{:02}", text.empty() ? "" : ", ", name, hundredths / 100, hundredths % 100);
    };
    std::int64_t rest = std::llround(row.ms * 100);
    for (const runtime::plan::PartTime& part : row.stages) {
      const std::int64_t hundredths = std::min(rest, static_cast<std::int64_t>(part.ms * 100));
      add(part.name, hundredths);
      rest -= hundredths;
    }
    // The rest is what the host does beside the backend, as a search near the memory.
    if (rest > 0) add("rest", rest);
    return text;
  }

  std::string table() const {
    std::string text = fmt::format("{} layers, {} query heads, {} KV heads of {}\n\n", bench_.layers,
                                   bench_.query_heads, bench_.kv_heads, bench_.head_dim);
    text += "| tokens | columns | attention | ms/token | of which | link | near | floor ms | layers measured |\n";
    text += "|---:|---|---|---:|---|---:|---:|---:|---:|\n";
    for (const Measured& m : all_) {
      text += fmt::format("| {} | {} | {} | {:.2f} | {} | {} | {} | {} | {} of {} |\n", m.tokens,
                          offload::name(m.columns), runtime::method_label(m.row.attn), m.row.ms, parts(m.row),
                          format_bytes(m.row.counters.total(runtime::Place::link)),
                          format_bytes(m.row.counters.total(runtime::Place::near)),
                          rates_ ? fmt::format("{:.2f}", floor_ms(m.row)) : std::string(), m.measured_layers,
                          bench_.layers);
    }
    return text;
  }

  // Returns how columns came over the link: one word if all formats of this run did alike.
  std::string link_text(const gpu::LinkChoice& link) const {
    const auto as_first = [&](offload::ColumnFormat format) { return link.of(format) == link.of(columns_.front()); };
    if (std::all_of(columns_.begin(), columns_.end(), as_first)) return name(link.of(columns_.front()));
    std::string text;
    for (const offload::ColumnFormat format : columns_) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", offload::name(format), name(link.of(format)));
    }
    return text;
  }

  // complete: whether every method has been measured.
  std::string as_json(const Environment& environment, bool complete) const {
    const gpu::Backend& backend = *environment.backend;
    nlohmann::ordered_json json{
        {"schema", "hayloft.bench/1"},
        {"version", HAYLOFT_VERSION},
        {"complete", complete},
        {"device", backend.name()},
        {"description", backend.description()},
        {"link", backend.name() == "cuda" ? nlohmann::ordered_json(link_text(environment.link)) : nullptr},
        {"notes", *environment.notes},
        {"device_memory", runtime::device_memory_json(backend.memory())},
        {"layers", bench_.layers},
        {"query_heads", bench_.query_heads},
        {"kv_heads", bench_.kv_heads},
        {"head_dim", bench_.head_dim},
        {"row_format", offload::name(bench_.rows)}};
    if (rates_) json.update({{"link_GBps", rates_->link}, {"near_GBps", rates_->near}});
    json["rows"] = nlohmann::ordered_json::array();
    for (const Measured& m : all_) {
      const bool dense = m.row.attn.name == "dense";  // which attends to everything
      const runtime::SharedMethod method = runtime::make_method(m.row.attn, bench_.head_dim);
      nlohmann::ordered_json row{
          {"tokens", m.tokens},
          {"columns", offload::name(m.columns)},
          {"link", backend.name() == "cuda" ? nlohmann::ordered_json(name(environment.link.of(m.columns))) : nullptr},
          {"attn", runtime::method_label(m.row.attn)},
          {"method", m.row.attn.name},
          {"r", runtime::has_rank(m.row.attn) ? nlohmann::ordered_json(m.row.attn.rank) : nullptr},
          {"k", dense ? nlohmann::ordered_json() : nlohmann::ordered_json(m.row.attn.k.at(0).of(m.tokens))},
          {"window", dense ? nlohmann::ordered_json() : nlohmann::ordered_json(method->window(m.tokens))},
          {"ms_per_token", m.row.ms},
          {"ms_quartiles", {m.row.ms_low, m.row.ms_high}},
          {"steps", m.row.steps},
          {"measured_layers", m.measured_layers},
          {"host_bytes", m.host_bytes}};
      for (const runtime::plan::PartTime& stage : m.row.stages) row["stage_ms"][stage.name] = stage.ms;
      for (int place = 0; place < runtime::place_count; ++place) {
        const auto at = static_cast<runtime::Place>(place);
        row["bytes"][runtime::name(at)] = m.row.counters.total(at);
      }
      for (int kind = 0; kind < runtime::kind_count; ++kind) {
        const auto of = static_cast<runtime::Kind>(kind);
        const std::uint64_t bytes = m.row.counters.at(runtime::Place::link, of);
        if (bytes > 0) row["link_bytes"][runtime::name(of)] = bytes;
      }
      if (rates_) row["floor_ms"] = floor_ms(m.row);
      json["rows"].push_back(std::move(row));
    }
    return json.dump(2) + "\n";
  }

  runtime::plan::AttentionBench bench_;
  std::vector<std::int64_t> lengths_{std::int64_t{1} << 17, std::int64_t{1} << 20};
  std::vector<offload::ColumnFormat> columns_{offload::ColumnFormat::f16};
  std::string json_;
  AttentionOptions attention_;
  MachineOptions machine_;

  std::optional<ReadRates> rates_;
  std::vector<Measured> all_;  // so far
};

}  // namespace

std::unique_ptr<Command> make_bench_command(CLI::App& app) {
  return std::make_unique<BenchCommand>(app);
}

}  // namespace hayloft::cli
