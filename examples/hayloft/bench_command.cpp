#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "examples/hayloft/command.h"
#include "examples/hayloft/environment.h"
#include "examples/hayloft/interrupt.h"
#include "examples/hayloft/options.h"
#include "examples/hayloft/text_output.h"
#include "offload/error.h"
#include "offload/format.h"
#include "runtime/attention_bench.h"
#include "runtime/needle_report.h"
#include "runtime/profile.h"

// hayloft bench: what attention costs per token at the shape of a model, over a store of noise.
namespace hayloft::cli {
namespace {

constexpr const char* examples = R"(Examples:
  hayloft bench --shape 32,32,8,128 --ctx-size 128k,1M --attn dense,sparq:k=512 --columns f16,int4
  hayloft bench --shape 4,8,2,64 --ctx-size 64k --attn sparq,topk --json -)";

struct Measured {
  std::int64_t tokens;
  offload::ColumnFormat columns;
  int measured_layers;
  std::uint64_t host_bytes;
  runtime::AttentionBenchRow row;
};

class BenchCommand : public Command {
 public:
  explicit BenchCommand(CLI::App& app) {
    app.footer(examples);
    add_text(
        app, "--shape", "LAYERS,HEADS,KV-HEADS,HEAD-DIM",
        [this](const std::string& text) {
          const runtime::ShapeOptions shape = read_shape(text);
          bench_.layers = static_cast<int>(shape.layers);
          bench_.query_heads = static_cast<int>(shape.heads);
          bench_.kv_heads = static_cast<int>(shape.kv_heads);
          bench_.head_dim = static_cast<int>(shape.head_dim);
        },
        "The shape of the model whose attention is timed; the default is that of Llama-3-8B")
        ->default_str("32,32,8,128");
    add_text(
        app, "-c,--ctx-size", "TOKENS,...", [this](const std::string& text) { lengths_ = context_lengths(text); },
        "Context lengths, as in 4096,64k,1M")
        ->default_str("128k,1M");
    add_text(
        app, "--columns", "FORMAT,...", [this](const std::string& text) { read_columns(text); },
        "Formats of the key columns: f16, int8, int4")
        ->default_str("f16");
    app.add_option("--seconds", bench_.seconds, "About how long to measure each method")
        ->type_name("S")
        ->check(CLI::Range(0.01, 3600.0))
        ->take_last()
        ->capture_default_str();
    app.add_option("--profile", profile_, "Machine profile, for the floor [the one that hayloft link keeps]")
        ->type_name("FILE")
        ->take_last();
    app.add_option("--json", json_, "Write the figures as JSON; - is standard output")
        ->type_name("FILE|-")
        ->take_last();
    add_attention_options(app, attention_, {"dense", "sparq:k=512"});
    add_machine_options(app, machine_);
  }

  void check() override {
    bench_.methods = attention_.methods();
    bench_.block_tokens = machine_.block_tokens;
    if (bench_.query_heads % bench_.kv_heads != 0) {
      fail("--shape: {} query heads cannot be shared out among {} KV heads", bench_.query_heads, bench_.kv_heads);
    }
    for (const runtime::MethodOptions& method : bench_.methods) runtime::make_method(method, bench_.head_dim);
    for (const offload::ColumnFormat format : columns_) {
      offload::BlockLayout({1, bench_.kv_heads, bench_.head_dim, bench_.block_tokens, format});
    }
  }

  void run() override {
    const TextOutput json(json_);
    json.check();
    const Environment environment(machine_);
    const std::optional<double> rate = link_rate(environment.backend->name());
    std::vector<Measured> all;
    for (const std::int64_t tokens : lengths_) {
      for (const offload::ColumnFormat format : columns_) {
        bench_.tokens = tokens;
        bench_.columns = format;
        const runtime::AttentionBenchResult result = runtime::bench_attention(
            *environment.backend, *environment.arena, bench_, [](const std::string&) { check_interrupted(); });
        for (const runtime::AttentionBenchRow& row : result.rows) {
          all.push_back({tokens, format, result.measured_layers, result.host_bytes, row});
        }
      }
    }
    if (!json.to_stdout()) print(table(all, rate));
    json.write(as_json(all, rate, *environment.backend));
    say_device_memory(*environment.backend);
  }

 private:
  void read_columns(const std::string& text) {
    columns_.clear();
    std::istringstream items(text);
    for (std::string item; std::getline(items, item, ',');) columns_.push_back(column_format(item));
    if (columns_.empty()) fail("--columns: name at least one format");
  }

  // GB/s at which the store is read, when a profile of this device knows it.
  std::optional<double> link_rate(const std::string& device) const {
    const std::optional<runtime::MachineProfile> profile = runtime::find_profile(profile_);
    if (!profile) return std::nullopt;
    return device == "cpu" ? profile->near_read : profile->link_to_device;
  }

  static double floor_ms(const runtime::AttentionBenchRow& row, double rate) {
    const std::uint64_t bytes = row.counters.total(runtime::Place::link) + row.counters.total(runtime::Place::near);
    return static_cast<double>(bytes) / rate / 1e6;
  }

  std::string table(const std::vector<Measured>& all, std::optional<double> rate) const {
    std::string text = fmt::format("{} layers, {} query heads, {} KV heads of {}\n\n", bench_.layers,
                                   bench_.query_heads, bench_.kv_heads, bench_.head_dim);
    text += "| tokens | columns | attention | ms/token | of which | link | near | floor ms | layers measured |\n";
    text += "|---:|---|---|---:|---|---:|---:|---:|---:|\n";
    for (const Measured& m : all) {
      std::string parts;
      for (const runtime::PartTime& part : m.row.stages.empty() ? m.row.verbs : m.row.stages) {
        parts += fmt::format("{}{} {:.2f}", parts.empty() ? "" : ", ", part.name, part.ms);
      }
      text += fmt::format(
          "| {} | {} | {} | {:.2f} | {} | {} | {} | {} | {} of {} |\n", m.tokens, offload::name(m.columns),
          runtime::method_label(m.row.attn), m.row.ms, parts, format_bytes(m.row.counters.total(runtime::Place::link)),
          format_bytes(m.row.counters.total(runtime::Place::near)),
          rate ? fmt::format("{:.2f}", floor_ms(m.row, *rate)) : std::string(), m.measured_layers, bench_.layers);
    }
    return text;
  }

  std::string as_json(const std::vector<Measured>& all, std::optional<double> rate, const gpu::Backend& backend) const {
    nlohmann::ordered_json json{{"schema", "hayloft.bench/1"}, {"version", HAYLOFT_VERSION},
                                {"device", backend.name()},    {"description", backend.description()},
                                {"layers", bench_.layers},     {"query_heads", bench_.query_heads},
                                {"kv_heads", bench_.kv_heads}, {"head_dim", bench_.head_dim}};
    if (rate) json["read_GBps"] = *rate;
    json["rows"] = nlohmann::ordered_json::array();
    for (const Measured& m : all) {
      nlohmann::ordered_json row{{"tokens", m.tokens},
                                 {"columns", offload::name(m.columns)},
                                 {"attn", runtime::method_label(m.row.attn)},
                                 {"ms_per_token", m.row.ms},
                                 {"ms_quartiles", {m.row.ms_low, m.row.ms_high}},
                                 {"steps", m.row.steps},
                                 {"measured_layers", m.measured_layers},
                                 {"host_bytes", m.host_bytes}};
      for (const runtime::PartTime& verb : m.row.verbs) row["verb_ms"][verb.name] = verb.ms;
      for (const runtime::PartTime& stage : m.row.stages) row["stage_ms"][stage.name] = stage.ms;
      for (int place = 0; place < runtime::place_count; ++place) {
        const auto at = static_cast<runtime::Place>(place);
        row["bytes"][runtime::name(at)] = m.row.counters.total(at);
      }
      if (rate) row["floor_ms"] = floor_ms(m.row, *rate);
      json["rows"].push_back(std::move(row));
    }
    return json.dump(2) + "\n";
  }

  runtime::AttentionBench bench_;
  std::vector<std::int64_t> lengths_{std::int64_t{1} << 17, std::int64_t{1} << 20};
  std::vector<offload::ColumnFormat> columns_{offload::ColumnFormat::f16};
  std::string profile_;
  std::string json_;
  AttentionOptions attention_;
  MachineOptions machine_;
};

}  // namespace

std::unique_ptr<Command> make_bench_command(CLI::App& app) {
  return std::make_unique<BenchCommand>(app);
}

}  // namespace hayloft::cli
