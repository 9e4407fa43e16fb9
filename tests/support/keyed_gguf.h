#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/gguf_image.h"

namespace hayloft::test {

// A small model as a GGUF file of an architecture, with metadata as given: the same bytes of weights as
// scripts/make-gguf-key-goldens.py gives to llama.cpp.
class KeyedGguf {
 public:
  KeyedGguf(std::string architecture, const nlohmann::json& keys)
      : architecture_(std::move(architecture)),
        hidden_(keys.at("embedding_length").get<std::uint64_t>()),
        inner_(first(keys.at("feed_forward_length"))),
        kv_width_(first(keys.at("attention.head_count_kv")) * dim) {
    image.set("general.architecture", architecture_);
    for (const auto& [name, value] : keys.items()) set(architecture_ + "." + name, value);
    std::vector<std::string> tokens;
    for (std::uint64_t i = 0; i < vocabulary; ++i) {
      tokens.push_back(i < 94    ? std::string(1, static_cast<char>(33 + i))
                       : i == 94 ? "ab"
                                 : "<" + std::to_string(i) + ">");
    }
    image.set("tokenizer.ggml.model", "gpt2");
    image.set("tokenizer.ggml.pre", "gpt-2");
    image.set("tokenizer.ggml.tokens", tokens);
    image.set("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
    image.set("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(vocabulary - 1));
    add_tensors(keys.at("block_count").get<int>(), keys.contains("rope.scaling.attn_factor"));
  }

  GgufImage image;

 private:
  static constexpr std::uint64_t vocabulary = 96, dim = 16;
  using Shape = std::vector<std::uint64_t>;  // rows first

  static std::uint64_t first(const nlohmann::json& value) {
    return value.is_array() ? value.front().get<std::uint64_t>() : value.get<std::uint64_t>();
  }

  void set(const std::string& key, const nlohmann::json& value) {
    if (value.is_boolean()) {
      image.set(key, value.get<bool>());
    } else if (value.is_number_integer()) {
      image.set(key, value.get<std::uint32_t>());
    } else if (value.is_number()) {
      image.set(key, value.get<float>());
    } else if (value.is_string()) {
      image.set(key, value.get<std::string>());
    } else if (value.front().is_boolean()) {
      std::string bytes = GgufImage::raw(std::uint32_t{7}) + GgufImage::raw(std::uint64_t{value.size()});
      for (const auto& each : value) bytes += GgufImage::raw(static_cast<std::uint8_t>(each.get<bool>()));
      image.pair(key, 9, bytes);
    } else {
      image.set(key, value.get<std::vector<std::int32_t>>());
    }
  }

  // In [-1, 1), by the tensor's name and the place in it.
  static double uniform(const std::string& name, std::uint32_t i) {
    std::uint32_t x = 2166136261u;
    for (const char letter : name) x = (x ^ static_cast<std::uint8_t>(letter)) * 16777619u;
    x += i * 2654435761u;
    x = (x ^ (x >> 16)) * 2246822507u;
    x = (x ^ (x >> 13)) * 3266489909u;
    x ^= x >> 16;
    return x / 2147483648.0 - 1.0;
  }

  void add(const std::string& name, const Shape& shape) {
    std::uint64_t count = 1;
    for (const std::uint64_t length : shape) count *= length;
    const bool norm = name.find("norm") != std::string::npos, factors = name.starts_with("rope_factors");
    const bool bias = name.ends_with(".bias"), embedding = name == "token_embd.weight";
    std::string bytes;
    for (std::uint32_t i = 0; i < count; ++i) {
      const double u = uniform(name, i);
      const double value = norm        ? 1.0 + 0.5 * u
                           : factors   ? 2.0 + u
                           : bias      ? 0.5 * u
                           : embedding ? u
                                       : u * (2.5 / std::sqrt(static_cast<double>(shape.back())));
      bytes += GgufImage::raw(static_cast<float>(value));
    }
    image.tensor(name, {shape.rbegin(), shape.rend()}, 0, bytes);
  }

  bool is(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (architecture_ == name) return true;
    }
    return false;
  }

  void add_tensors(int layers, bool factors) {
    add("token_embd.weight", {vocabulary, hidden_});
    add("output_norm.weight", {hidden_});
    add("output.weight", {vocabulary, hidden_});
    if (factors && is({"phi3"})) {
      add("rope_factors_long.weight", {dim / 2});
      add("rope_factors_short.weight", {dim / 2});
    }
    for (int layer = 0; layer < layers; ++layer) add_layer("blk." + std::to_string(layer) + ".");
  }

  void add_layer(const std::string& at) {
    if (!is({"olmo2"})) {
      add(at + "attn_norm.weight", {hidden_});
      add(at + "ffn_norm.weight", {hidden_});
    }
    if (is({"olmo2", "gemma3"})) {
      add(at + "post_attention_norm.weight", {hidden_});
      add(at + "post_ffw_norm.weight", {hidden_});
    }
    if (is({"qwen3", "gemma3", "olmo2"})) {
      add(at + "attn_q_norm.weight", {is({"olmo2"}) ? hidden_ : dim});
      add(at + "attn_k_norm.weight", {is({"olmo2"}) ? kv_width_ : dim});
    }
    if (is({"phi3"})) {
      add(at + "attn_qkv.weight", {hidden_ + 2 * kv_width_, hidden_});
      add(at + "ffn_up.weight", {2 * inner_, hidden_});
    } else {
      for (const auto& [part, width] :
           {std::pair{"q", hidden_}, std::pair{"k", kv_width_}, std::pair{"v", kv_width_}}) {
        add(at + "attn_" + part + ".weight", {width, hidden_});
        if (is({"qwen2"})) add(at + "attn_" + part + ".bias", {width});
      }
      add(at + "ffn_gate.weight", {inner_, hidden_});
      add(at + "ffn_up.weight", {inner_, hidden_});
    }
    add(at + "attn_output.weight", {hidden_, hidden_});
    add(at + "ffn_down.weight", {hidden_, inner_});
  }

  std::string architecture_;
  std::uint64_t hidden_, inner_, kv_width_;
};

}  // namespace hayloft::test
