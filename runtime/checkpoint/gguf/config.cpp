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
constexpr std::int64_t most_experts_width = 1 << 14;
constexpr std::int64_t most_tokens = std::int64_t{1} << 40;

struct Architecture {
  const char* name;
  bool pairs;  // see rows_in_pairs
  bool qk_norm;
  int rope_free_interval = 0;  // every so many-th layer has no RoPE; 0: all have it
  Norms norms = Norms::before;
};
constexpr Architecture architectures[] = {
    {"llama", true, false},      {"mistral3", true, false},
    {"qwen2", false, false},     {"qwen3", false, true},
    {"phi3", false, false},      {"gemma3", false, true, 0, Norms::both},
    {"granite", true, false},    {"olmo2", false, true, 0, Norms::after},
    {"smollm3", true, false, 4}, {"qwen35", false, true},
    {"qwen3moe", false, true},   {"qwen35moe", false, true},
    {"gpt-oss", false, false},
};

constexpr const char* llama3_factors = "rope_freqs.weight";
constexpr const char* long_factors = "rope_factors_long.weight";
constexpr const char* short_factors = "rope_factors_short.weight";

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& architecture : architectures) {
    if (name == architecture.name) return &architecture;
  }
  return nullptr;
}

// A file's metadata under its architecture's prefix: key("block_count") is "llama.block_count".
class Reader {
 public:
  Reader(const Metadata& metadata, const Tensors& tensors) : metadata_(metadata), tensors_(tensors) {
    prefix_ = metadata_.text("general.architecture");
    architecture_ = find_architecture(prefix_);
    if (!architecture_) {
      std::string names;
      for (const Architecture& each : architectures) names += (names.empty() ? "" : ", ") + std::string(each.name);
      metadata_.refuse("general.architecture", "one of " + names + " for hayloft to run it");
    }
    prefix_ += '.';
  }

  ModelConfig read() {
    ModelConfig config;
    config.architecture = architecture_->name;
    read_shape(config);
    config.rms_norm_eps = static_cast<float>(metadata_.positive(key("attention.layer_norm_rms_epsilon")));
    config.tied_embeddings = !find("output.weight");
    config.qkv_bias = find("blk.0.attn_q.bias");
    config.output_bias = find("blk.0.attn_output.bias");
    config.mlp_bias = find("blk.0.ffn_gate.bias");
    config.qk_norm = architecture_->qk_norm;
    config.norms = architecture_->norms;
    read_parts(config);
    read_layers(config);
    read_rope(config);
    limit_to_one_chunk(config);
    set_rope(config);
    config.eos_tokens = end_tokens(metadata_);
    return config;
  }

 private:
  std::string key(const char* name) const { return prefix_ + name; }
  int integer(const char* name, std::int64_t most) const {
    return static_cast<int>(metadata_.integer(key(name), 1, most));
  }

  // Of models that are planned and not run.
  void read_experts(ModelConfig& config) const {
    const auto size = [&](const char* name, std::int64_t absent) {
      return static_cast<int>(metadata_.integer_or(key(name), absent, absent, most_experts_width));
    };
    const int count = size("expert_count", 0);
    if (!is("qwen3moe") && !is("qwen35moe") && !is("gpt-oss")) {
      if (count > 0) {
        metadata_.refuse(key("expert_count"), fmt::format("0: {} is no mixture of experts here", architecture_->name));
      }
      config.intermediate_size = integer("feed_forward_length", most_width);
      return;
    }
    config.experts = {std::max(count, 1), integer("expert_used_count", most_experts_width),
                      integer("expert_feed_forward_length", most_experts_width),
                      size("expert_shared_feed_forward_length", 0)};
    if (config.experts.used > config.experts.count) {
      metadata_.refuse(key("expert_used_count"), fmt::format("at most expert_count, {}", config.experts.count));
    }
    config.intermediate_size = config.experts.used * config.experts.inner + config.experts.shared_inner;
  }

  void read_shape(ModelConfig& config) const {
    config.layers = integer("block_count", most_layers) - blocks_behind(metadata_);
    config.hidden_size = integer("embedding_length", most_width);
    read_experts(config);
    config.query_heads = integer("attention.head_count", most_heads);
    config.kv_heads =
        static_cast<int>(metadata_.integer_or(key("attention.head_count_kv"), config.query_heads, 1, most_heads));
    if (config.query_heads % config.kv_heads != 0) {
      fail("{}: attention.head_count {} is not a multiple of attention.head_count_kv {}", metadata_.file(),
           config.query_heads, config.kv_heads);
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

    const Tensor* embedding = find("token_embd.weight");
    if (!embedding || embedding->shape.size() != 2) fail("{}: has no matrix token_embd.weight", metadata_.file());
    if (embedding->shape[0] > most_width * 4) fail("{}: a vocabulary of {}", metadata_.file(), embedding->shape[0]);
    config.vocab_size = static_cast<int>(embedding->shape[0]);
  }

  bool is(std::string_view name) const { return name == architecture_->name; }
  float number(const char* name, double absent) const {
    return static_cast<float>(metadata_.positive_or(key(name), absent));
  }

  void read_parts(ModelConfig& config) const {
    if (is("phi3")) config.fused = true;
    if (is("olmo2")) config.qk_norm_whole = true;
    if (is("qwen35") || is("qwen35moe")) read_delta(config);
    if (is("gemma3")) {
      config.activation = Activation::gelu_tanh;
      config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
      // The queries' scale of the 27B, which has 62 layers, is that of hidden_size / heads; a file does not say so.
      const int width = config.layers == 62 ? config.hidden_size / config.query_heads : config.head_dim;
      config.attention_scale = 1 / std::sqrt(static_cast<float>(width));
      for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
        if (metadata_.contains(key(cap))) metadata_.refuse(key(cap), "absent: caps are not supported");
      }
    }
    if (is("granite")) {
      config.embedding_scale = number("embedding_scale", 1);
      config.residual_scale = number("residual_scale", 1);
      config.attention_scale = metadata_.contains(key("attention.scale")) ? number("attention.scale", 1) : 0;
      config.logit_scale = 1 / number("logit_scale", 1);
    }
  }

  // Layers of gated delta rules, which have the names of a state space model's.
  void read_delta(ModelConfig& config) const {
    config.attention_gate = true;
    gpu::DeltaShape& delta = config.delta;
    delta.heads_in_turns = true;  // as ggml repeats keys
    delta.kernel = integer("ssm.conv_kernel", gpu::DeltaShape::most_kernel);
    delta.key_heads = integer("ssm.group_count", most_heads);
    delta.key_dim = integer("ssm.state_size", gpu::DeltaShape::most_key_dim);
    delta.value_heads = integer("ssm.time_step_rank", most_heads);
    const int values = integer("ssm.inner_size", most_width);
    if (delta.value_heads % delta.key_heads != 0) {
      metadata_.refuse(key("ssm.time_step_rank"), fmt::format("a multiple of ssm.group_count, {}", delta.key_heads));
    }
    if (values % delta.value_heads != 0) {
      metadata_.refuse(key("ssm.inner_size"), fmt::format("a multiple of ssm.time_step_rank, {}", delta.value_heads));
    }
    delta.value_dim = values / delta.value_heads;
  }

  // Which layers are of gated delta rules: listed, those behind the language model too, or all but every so many-th.
  void read_recurrent(ModelConfig& config) const {
    const auto layers = static_cast<std::size_t>(config.layers);
    config.recurrent.assign(layers, false);
    const std::string listed = key("attention.recurrent_layers");
    const auto interval =
        static_cast<std::size_t>(metadata_.integer_or(key("full_attention_interval"), 4, 1, most_layers));
    for (std::size_t layer = 0; layer < layers; ++layer) config.recurrent[layer] = (layer + 1) % interval != 0;
    if (metadata_.contains(listed)) {
      const std::vector<std::int64_t> list = metadata_.integers(listed);
      if (list.size() < layers) {
        metadata_.refuse(listed, fmt::format("a list of {} flags, one for each layer", config.layers));
      }
      for (std::size_t layer = 0; layer < layers; ++layer) config.recurrent[layer] = list[layer] != 0;
    }
    if (config.global_layers() == 0) {
      fail("{}: none of {} layers attends to the tokens before; at least one must", metadata_.file(), config.layers);
    }
  }

  void read_layers(ModelConfig& config) const {
    const auto layers = static_cast<std::size_t>(config.layers);
    std::int64_t window = metadata_.integer_or(key("attention.sliding_window"), 0, 0, most_tokens);
    if (is("phi3") && window >= config.max_positions) window = 0;  // it hides nothing
    // Of the other architectures none slides unless the file says so, and then every layer does.
    config.sliding_window.assign(layers, window);
    if (is("gemma3")) read_pattern(config);
    if (is("qwen35") || is("qwen35moe")) read_recurrent(config);
    for (std::size_t layer = 1; is("gpt-oss") && layer < layers; layer += 2) config.sliding_window[layer] = 0;
    config.rope.assign(layers, true);
    const auto interval = static_cast<std::size_t>(architecture_->rope_free_interval);
    for (std::size_t layer = 0; interval > 0 && layer < layers; ++layer)
      config.rope[layer] = (layer + 1) % interval != 0;
  }

  // Which layers slide: listed, or all but every so many-th.
  void read_pattern(ModelConfig& config) const {
    const std::string name = key("attention.sliding_window_pattern");
    const Value* value = metadata_.find(name);
    if (value && std::get_if<Array>(value)) {
      const std::vector<std::int64_t> slides = metadata_.integers(name);
      if (slides.size() != config.sliding_window.size())
        metadata_.refuse(name, fmt::format("a list of {} numbers, one for each layer", config.layers));
      for (std::size_t layer = 0; layer < slides.size(); ++layer) {
        if (slides[layer] == 0) config.sliding_window[layer] = 0;
      }
      return;
    }
    const auto interval = static_cast<std::size_t>(metadata_.integer_or(name, 6, 1, most_layers));
    for (std::size_t layer = interval - 1; layer < config.sliding_window.size(); layer += interval) {
      config.sliding_window[layer] = 0;
    }
  }

  void read_rope(ModelConfig& config) const {
    RopeParameters& rope = config.global_rope;
    rope.dimensions =
        static_cast<int>(metadata_.integer_or(key("rope.dimension_count"), config.head_dim, 2, config.head_dim));
    if (rope.dimensions % 2 != 0) metadata_.refuse(key("rope.dimension_count"), "an even number");
    rope.base = number("rope.freq_base", 1e4);
    if (is("gemma3")) {
      config.local_rope = {.base = number("rope.freq_base_swa", 1e4), .dimensions = rope.dimensions};
    }
    rope.original_positions =
        metadata_.integer_or(key("rope.scaling.original_context_length"), config.max_positions, 0, most_tokens);
    read_scaling(config);
    rope.divisors = factors(llama3_factors, rope.dimensions / 2);
    if (is("mistral3")) {
      config.query_log_scale =
          metadata_.contains(key("attention.temperature_scale")) ? number("attention.temperature_scale", 1) : 0;
      config.query_scale_positions = std::max<std::int64_t>(rope.original_positions, 1);
    }
  }

  void read_scaling(ModelConfig& config) const {
    RopeParameters& rope = config.global_rope;
    const std::string_view type = metadata_.text_or(key("rope.scaling.type"), "none");
    const double older = metadata_.positive_or(key("rope.scale_linear"), 1);
    if (find(long_factors)) {  // which is what llama.cpp goes by
      rope.scaling = RopeScaling::longrope;
      rope.long_factors = factors(long_factors, rope.dimensions / 2);
      rope.short_factors = factors(short_factors, rope.dimensions / 2);
      if (rope.short_factors.empty()) fail("{}: has {} and no {}", metadata_.file(), long_factors, short_factors);
      rope.attention_factor = number("rope.scaling.attn_factor", 1);
    } else if (type == "linear" || (type == "none" && older != 1)) {
      rope.scaling = RopeScaling::linear;
      rope.factor = metadata_.positive_or(key("rope.scaling.factor"), older);
      // The context length of a file counts the scaling in.
      rope.original_positions =
          static_cast<std::int64_t>(std::round(static_cast<double>(config.max_positions) / rope.factor));
    } else if (type == "yarn") {
      rope.scaling = RopeScaling::yarn;
      rope.factor = metadata_.positive(key("rope.scaling.factor"));
      rope.beta_fast = number("rope.scaling.yarn_beta_fast", 32);
      rope.beta_slow = number("rope.scaling.yarn_beta_slow", 1);
      if (metadata_.contains(key("rope.scaling.yarn_attn_factor"))) {
        rope.attention_factor = number("rope.scaling.yarn_attn_factor", 1);
      }
      if (metadata_.contains(key("rope.scaling.yarn_log_multiplier"))) {
        rope.mscale = 1;
        rope.mscale_all = number("rope.scaling.yarn_log_multiplier", 1);
      }
      if (rope.original_positions < 1) metadata_.refuse(key("context_length"), "there, for YaRN goes by it");
    } else if (type != "none") {
      metadata_.refuse(key("rope.scaling.type"), "none, linear, yarn or, with factors, longrope");
    }
  }

  // Empty where there is no such tensor.
  std::vector<float> factors(const char* name, int count) const {
    const Tensor* tensor = find(name);
    if (!tensor) return {};
    if (tensor->type != TensorType::f32 || tensor->shape != std::vector<std::int64_t>{count}) {
      fail("{}: {} must be {} numbers in F32", metadata_.file(), name, count);
    }
    std::vector<float> numbers(static_cast<std::size_t>(count));
    dequantise(tensor->type, tensor->data, numbers.data());
    for (const float each : numbers) {
      if (!(each > 0)) fail("{}: {} holds {}, but divisors are above zero", metadata_.file(), name, each);
    }
    return numbers;
  }

  const Tensor* find(std::string_view name) const {
    const auto tensor = tensors_.find(name);
    return tensor == tensors_.end() ? nullptr : &tensor->second;
  }

  const Metadata& metadata_;
  const Tensors& tensors_;
  std::string prefix_;
  const Architecture* architecture_ = nullptr;
};

}  // namespace

ModelConfig read_config(const Metadata& metadata, const Tensors& tensors) {
  return Reader(metadata, tensors).read();
}

ModelConfig read_config(const File& file) {
  return read_config(file.metadata(), file.tensors());
}

int blocks_behind(const Metadata& metadata) {
  const std::string prefix = std::string(metadata.text("general.architecture")) + ".";
  const std::int64_t blocks = metadata.integer(prefix + "block_count", 1, most_layers);
  return static_cast<int>(metadata.integer_or(prefix + "nextn_predict_layers", 0, 0, blocks - 1));
}

bool holds_rope_factors(std::string_view tensor) {
  return tensor == llama3_factors || tensor == long_factors || tensor == short_factors;
}

bool rows_in_pairs(const ModelConfig& config) {
  const Architecture* architecture = find_architecture(config.architecture);
  return architecture && architecture->pairs;
}

}  // namespace hayloft::runtime::gguf
