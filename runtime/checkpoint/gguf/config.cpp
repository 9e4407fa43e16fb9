#include "runtime/checkpoint/gguf/config.h"

#include <algorithm>
#include <cmath>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/checkpoint/gguf/tokenizer.h"

namespace hayloft::runtime::gguf {
namespace {

// Far above any model there is; they keep sizes derived from the file inside an int and the lists below small.
constexpr std::int64_t most_layers = 4096;
constexpr std::int64_t most_heads = 1 << 12;
constexpr std::int64_t most_width = 1 << 22;
constexpr std::int64_t most_tokens = std::int64_t{1} << 40;

struct Architecture {
  const char* name;
  bool pairs;  // see rows_in_pairs
  bool qk_norm;
  int rope_free_interval;  // every so many-th layer has no RoPE; 0: all have it
};
constexpr Architecture architectures[] = {
    {"llama", true, false, 0},
    {"qwen2", false, false, 0},
    {"qwen3", false, true, 0},
    {"smollm3", true, false, 4},
};

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& architecture : architectures) {
    if (name == architecture.name) return &architecture;
  }
  return nullptr;
}

// A file's metadata under its architecture's prefix: key("block_count") is "llama.block_count".
class Reader {
 public:
  explicit Reader(const File& file) : file_(file), metadata_(file.metadata()) {
    prefix_ = metadata_.text("general.architecture");
    architecture_ = find_architecture(prefix_);
    if (!architecture_)
      metadata_.refuse("general.architecture", "llama, qwen2, qwen3 or smollm3 for hayloft to run it");
    prefix_ += '.';
  }

  ModelConfig read() {
    ModelConfig config;
    config.architecture = architecture_->name;
    read_shape(config);
    config.rms_norm_eps = static_cast<float>(metadata_.positive(key("attention.layer_norm_rms_epsilon")));
    config.tied_embeddings = !file_.find("output.weight");
    config.qkv_bias = file_.find("blk.0.attn_q.bias");
    config.output_bias = file_.find("blk.0.attn_output.bias");
    config.mlp_bias = file_.find("blk.0.ffn_gate.bias");
    config.qk_norm = architecture_->qk_norm;
    read_layers(config);
    read_rope(config);
    config.eos_tokens = end_tokens(metadata_);
    return config;
  }

 private:
  std::string key(const char* name) const { return prefix_ + name; }
  int integer(const char* name, std::int64_t most) const {
    return static_cast<int>(metadata_.integer(key(name), 1, most));
  }

  void read_shape(ModelConfig& config) const {
    config.layers = integer("block_count", most_layers);
    config.hidden_size = integer("embedding_length", most_width);
    config.intermediate_size = integer("feed_forward_length", most_width);
    config.query_heads = integer("attention.head_count", most_heads);
    config.kv_heads =
        static_cast<int>(metadata_.integer_or(key("attention.head_count_kv"), config.query_heads, 1, most_heads));
    if (config.query_heads % config.kv_heads != 0) {
      fail("{}: attention.head_count {} is not a multiple of attention.head_count_kv {}", metadata_.file(),
           config.query_heads, config.kv_heads);
    }
    if (metadata_.integer_or(key("expert_count"), 0, 0, most_width) > 0) {
      metadata_.refuse(key("expert_count"), "0: mixtures of experts are not supported");
    }

    if (!metadata_.contains(key("attention.key_length")) && config.hidden_size % config.query_heads != 0) {
      fail("{}: embedding_length {} is not a multiple of attention.head_count {}, and there is no attention.key_length",
           metadata_.file(), config.hidden_size, config.query_heads);
    }
    config.head_dim = static_cast<int>(
        metadata_.integer_or(key("attention.key_length"), config.hidden_size / config.query_heads, 1, most_width));
    if (config.head_dim % 8 != 0 || config.head_dim > 256) {
      fail("{}: heads of {} components are not supported; it must be a multiple of 8 up to 256", metadata_.file(),
           config.head_dim);
    }
    if (metadata_.integer_or(key("attention.value_length"), config.head_dim, 1, most_width) != config.head_dim) {
      metadata_.refuse(key("attention.value_length"), fmt::format("that of the keys, {}", config.head_dim));
    }
    config.max_positions = metadata_.integer_or(key("context_length"), 0, 1, most_tokens);

    const Tensor* embedding = file_.find("token_embd.weight");
    if (!embedding || embedding->shape.size() != 2) fail("{}: has no matrix token_embd.weight", metadata_.file());
    if (embedding->shape[0] > most_width * 4) fail("{}: a vocabulary of {}", metadata_.file(), embedding->shape[0]);
    config.vocab_size = static_cast<int>(embedding->shape[0]);
  }

  void read_layers(ModelConfig& config) const {
    const auto layers = static_cast<std::size_t>(config.layers);
    // Of these architectures none slides unless the file says so, and then every layer does.
    config.sliding_window.assign(layers, metadata_.integer_or(key("attention.sliding_window"), 0, 0, most_tokens));
    config.rope.assign(layers, true);
    const auto interval = static_cast<std::size_t>(architecture_->rope_free_interval);
    for (std::size_t layer = 0; interval > 0 && layer < layers; ++layer)
      config.rope[layer] = (layer + 1) % interval != 0;
  }

  void read_rope(ModelConfig& config) const {
    const std::int64_t rotated = metadata_.integer_or(key("rope.dimension_count"), config.head_dim, 1, most_width);
    if (rotated != config.head_dim) {
      metadata_.refuse(key("rope.dimension_count"), fmt::format("{}, all of a head", config.head_dim));
    }
    const float base = static_cast<float>(metadata_.positive_or(key("rope.freq_base"), 1e4));
    config.inverse_frequency.resize(static_cast<std::size_t>(config.head_dim / 2));
    for (int i = 0; i < config.head_dim / 2; ++i) {
      // As for a config.json: the power in f64 of operands in f32, then rounded.
      const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
      config.inverse_frequency[static_cast<std::size_t>(i)] =
          1.0f / static_cast<float>(std::pow(double{base}, double{exponent}));
    }
    scale_rope(config);
    divide_by_factors(config);
  }

  void scale_rope(ModelConfig& config) const {
    const std::string_view type = metadata_.text_or(key("rope.scaling.type"), "none");
    const float older = static_cast<float>(metadata_.positive_or(key("rope.scale_linear"), 1));
    if (type == "linear" || (type == "none" && older != 1)) {
      const float factor = static_cast<float>(metadata_.positive_or(key("rope.scaling.factor"), older));
      for (float& frequency : config.inverse_frequency) frequency /= factor;
    } else if (type != "none") {
      metadata_.refuse(key("rope.scaling.type"), "none or linear");
    }
  }

  void divide_by_factors(ModelConfig& config) const {
    const Tensor* factors = file_.find(rope_factors_name);
    if (!factors) return;
    if (factors->type != TensorType::f32 || factors->shape != std::vector<std::int64_t>{config.head_dim / 2}) {
      fail("{}: {} must be {} numbers in F32", metadata_.file(), rope_factors_name, config.head_dim / 2);
    }
    std::vector<float> divisors(config.inverse_frequency.size());
    dequantise(factors->type, factors->data, divisors.data());
    for (std::size_t i = 0; i < divisors.size(); ++i) config.inverse_frequency[i] /= divisors[i];
  }

  const File& file_;
  const Metadata& metadata_;
  std::string prefix_;
  const Architecture* architecture_ = nullptr;
};

}  // namespace

ModelConfig read_config(const File& file) {
  return Reader(file).read();
}

bool rows_in_pairs(const ModelConfig& config) {
  const Architecture* architecture = find_architecture(config.architecture);
  return architecture && architecture->pairs;
}

}  // namespace hayloft::runtime::gguf
