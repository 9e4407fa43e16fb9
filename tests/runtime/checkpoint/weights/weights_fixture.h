#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "gpu/make_backend.h"
#include "offload/half.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/weights/weights.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime {

// A small checkpoint that tests change before it is loaded.
class WeightsTest : public ::testing::Test {
 protected:
  // One tensor of a checkpoint under test: its bytes are a ramp that starts at a number of its own.
  struct Tensor {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };

  using Tensors = std::map<std::string, Tensor>;

  static std::string image(const Tensors& tensors) {
    nlohmann::json header = nlohmann::json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      const std::size_t begin = data.size();
      for (const float x : tensor.values) {
        if (tensor.dtype == "F16") {
          const f16 half = to_f16(x);
          data.append(reinterpret_cast<const char*>(&half), 2);
        } else if (tensor.dtype == "BF16") {
          data.append(reinterpret_cast<const char*>(&x) + 2, 2);
        } else {
          data.append(reinterpret_cast<const char*>(&x), 4);
        }
      }
      header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
  }

  // A qwen3-like model of one layer with every option on: hidden 16, 2 query heads, 1 KV head, d 8, inner 24, vocab 10.
  static ModelConfig small_config() {
    ModelConfig config;
    config.architecture = "qwen3";
    config.vocab_size = 10;
    config.hidden_size = 16;
    config.intermediate_size = 24;
    config.layers = 1;
    config.query_heads = 2;
    config.kv_heads = 1;
    config.head_dim = 8;
    config.qkv_bias = config.output_bias = config.mlp_bias = config.qk_norm = true;
    config.sliding_window = {0};
    config.rope = {true};
    config.global_table.inverse_frequency = {1.0f, 0.5f, 0.25f, 0.125f};
    return config;
  }

  static Tensors small_checkpoint(const std::string& dtype) {
    const std::pair<std::string, std::vector<std::int64_t>> shapes[] = {
        {"model.embed_tokens.weight", {10, 16}},
        {"model.layers.0.input_layernorm.weight", {16}},
        {"model.layers.0.post_attention_layernorm.weight", {16}},
        {"model.layers.0.self_attn.q_proj.weight", {16, 16}},
        {"model.layers.0.self_attn.q_proj.bias", {16}},
        {"model.layers.0.self_attn.k_proj.weight", {8, 16}},
        {"model.layers.0.self_attn.k_proj.bias", {8}},
        {"model.layers.0.self_attn.v_proj.weight", {8, 16}},
        {"model.layers.0.self_attn.v_proj.bias", {8}},
        {"model.layers.0.self_attn.o_proj.weight", {16, 16}},
        {"model.layers.0.self_attn.o_proj.bias", {16}},
        {"model.layers.0.self_attn.q_norm.weight", {8}},
        {"model.layers.0.self_attn.k_norm.weight", {8}},
        {"model.layers.0.mlp.gate_proj.weight", {24, 16}},
        {"model.layers.0.mlp.gate_proj.bias", {24}},
        {"model.layers.0.mlp.up_proj.weight", {24, 16}},
        {"model.layers.0.mlp.up_proj.bias", {24}},
        {"model.layers.0.mlp.down_proj.weight", {16, 24}},
        {"model.layers.0.mlp.down_proj.bias", {16}},
        {"model.norm.weight", {16}},
        {"lm_head.weight", {10, 16}},
    };
    Tensors tensors;
    float start = 1;
    for (const auto& [name, shape] : shapes) {
      std::int64_t elements = 1;
      for (const std::int64_t n : shape) elements *= n;
      // Numbers every dtype under test holds exactly: the tensor's own in the first place, then 0 to 63.
      std::vector<float> values(static_cast<std::size_t>(elements));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 64);
      values[0] = start++;
      tensors[name] = {dtype, shape, values};
    }
    return tensors;
  }

  // small_checkpoint without what an architecture has no place for.
  static Tensors without(std::initializer_list<const char*> endings) {
    Tensors tensors = small_checkpoint("F32");
    for (const char* ending : endings) {
      std::erase_if(tensors, [&](const auto& tensor) { return tensor.first.ends_with(ending); });
    }
    return tensors;
  }

  Weights load(const ModelConfig& config) { return load_weights(*Checkpoint::open(folder_.path()), config, *backend_); }

  std::vector<std::byte> bytes_at(const void* device, std::size_t bytes) {
    std::vector<std::byte> host(bytes);
    backend_->to_host(host.data(), device, bytes, backend_->stream());
    return host;
  }
  float first(const void* device) {
    float x;
    std::memcpy(&x, bytes_at(device, 4).data(), 4);
    return x;
  }

  offload::Threads threads_{1};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  test::TemporaryFolder folder_;
};

}  // namespace hayloft::runtime
