#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/backend.h"
#include "runtime/checkpoint/config.h"

namespace hayloft::runtime::gguf {
enum class TensorType : std::uint32_t;  // runtime/checkpoint/gguf/types.h
}

namespace hayloft::runtime {

class Checkpoint;  // runtime/checkpoint/checkpoint.h

// The weights of a recurrent layer, beside its norms and MLP. o is [hidden][values], output_gate [values][hidden]; it
// has no q, k and v.
struct DeltaWeights {
  gpu::Matrix inputs;      // [channels][hidden]
  gpu::Matrix step, rate;  // [Hv][hidden]: a and b of gpu::DeltaLayer
  gpu::DeltaLayer layer;
};

// Holds the matrices of one expert that a router chooses from; null biases stand for none.
struct Expert {
  gpu::Matrix gate, up;              // [inner][hidden]
  gpu::Matrix down;                  // [hidden][inner]
  const float* gate_bias = nullptr;  // [inner]
  const float* up_bias = nullptr;    // [inner]
  const float* down_bias = nullptr;  // [hidden]
};

// The weights of a mixture of experts. Beside it, gate, up and down of the layer are those of the expert or the MLP
// that every token goes through, where there is one.
struct ExpertWeights {
  gpu::Matrix router;  // [experts][hidden]
  std::vector<Expert> each;
  std::vector<float> scales;           // [experts], what their shares are multiplied by; empty: nothing
  const float* router_norm = nullptr;  // [hidden], of what the router sees, where that has a norm of its own
  const float* norm = nullptr;         // [hidden], of what the experts see then
  const float* mixed_norm = nullptr;   // [hidden], of what they give
  const float* beside_norm = nullptr;  // [hidden], of what the MLP beside them gives
  gpu::Matrix shared_gate;             // [1][hidden]: what weights the expert of all
  const float* router_bias = nullptr;  // [experts]
};

// A model's weights in device memory, in the dtype of the checkpoint (f32, f16 or bf16) or the one that the backend
// made of it (Backend::convert_weights); norms and biases as f32. Null pointers stand for what the architecture does
// not have.
struct LayerWeights {
  // [Hq d][hidden], [Hkv d][hidden], [Hkv d][hidden], [hidden][Hq d]; v is empty where keys are values.
  gpu::Matrix q, k, v, o;
  gpu::Matrix output_gate;        // [Hq d][hidden]: attention's gates
  gpu::Matrix gate, up, down;     // [intermediate][hidden] twice, [hidden][intermediate]
  ExpertWeights experts;          // of a layer that has them
  const float* q_bias = nullptr;  // [Hq d]
  const float* k_bias = nullptr;  // [Hkv d]
  const float* v_bias = nullptr;  // [Hkv d]
  const float* o_bias = nullptr;  // [hidden]
  const float* sinks = nullptr;   // [Hq], of gpu::CacheView
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
  const float* attention_norm = nullptr;  // [hidden], before attention
  const float* attended_norm = nullptr;   // [hidden], of what attention gives
  const float* mlp_norm = nullptr;        // [hidden], before the MLP
  const float* output_norm = nullptr;     // [hidden], of what the MLP gives
  DeltaWeights delta;
  const float* q_norm = nullptr;  // [d], or [Hq d] where config.qk_norm_whole
  const float* k_norm = nullptr;  // [d], or [Hkv d]
  const float* v_norm = nullptr;  // [d], ones
  float scale = 1;                // of the residual stream behind the layer
};

// The weights of a head that predicts further tokens (runtime/checkpoint/draft_head.h), beside the model's embedding
// and output.
struct HeadWeights {
  gpu::Matrix join;                       // [hidden][2 hidden]: of an embedding and a state, each under its norm
  const float* embedding_norm = nullptr;  // [hidden]
  const float* state_norm = nullptr;      // [hidden]
  const float* final_norm = nullptr;      // [hidden], behind the layer
  LayerWeights layer;
  std::uint64_t bytes = 0;  // of all that, in memory
};

// All weights of a model, in memory of the backend. Beside a device with memory of its own, the embedding stays in host
// memory, pinned where that is possible, unless it is the output too: one row of it is read for each token.
struct Weights {
  gpu::Matrix embedding;                           // [vocab][hidden]
  gpu::Matrix output;                              // [vocab][hidden]; the embedding itself when tied
  const float* final_norm = nullptr;               // [hidden]
  float* inverse_frequency = nullptr;              // of RopeTable, for all layers, or for global ones where there is
  const float* local_inverse_frequency = nullptr;  // one for sliding-window layers
  std::vector<LayerWeights> layers;
  std::optional<HeadWeights> head;  // where it was asked for

  std::vector<gpu::Buffer> buffers;  // owns everything the pointers above point to, but for the embedding on a host
  std::uint64_t bytes = 0;
  bool packed = false;               // whether any matrix is
  std::vector<std::string> notes;    // what the user should know of these weights, one line each
  std::vector<std::string> skipped;  // parts of the checkpoint that are none of the language model's, likewise

  std::shared_ptr<std::byte> host_table;                 // the embedding, where it stays in host memory
  std::vector<std::shared_ptr<std::byte>> host_experts;  // likewise, all of them
  std::uint64_t host_bytes = 0;     // of `bytes`, the embedding's where a device with memory of its own leaves it
  std::uint64_t mixture_bytes = 0;  // of `bytes`, those of experts that a router chooses from
};

// Says how matrices lie in memory: as the checkpoint has them, quantised ones packed (gpu/packed.h); all in f16; or
// packed with 8 or 4 bits where the checkpoint has them in 16 or 32 (runtime/checkpoint/weights/quantise.h) and rows
// are whole groups.
enum class WeightForm : std::uint8_t { stored, f16, q8, q4 };
const char* name(WeightForm form);  // as --weights takes it

// Takes every tensor that `config`, the checkpoint's, calls for to the device, experts that a router chooses from to
// host memory of the backend where that is wanted. With `head` those of the head that predicts further tokens, too, all
// on the device. Throws Error naming tensor and file: missing, truncated, wrong type, wrong shape; or saying that there
// is no head that is computed here.
Weights load_weights(Checkpoint& checkpoint, const ModelConfig& config, gpu::Backend& backend,
                     WeightForm form = WeightForm::stored, bool experts_on_host = false, bool head = false);

// Says how much memory weights take, and how much of it each decoded token reads.
struct WeightSizes {
  std::uint64_t bytes = 0;           // in memory
  std::uint64_t host_bytes = 0;      // of them, in the machine's when a device has memory of its own
  std::uint64_t bytes_per_step = 0;  // of matrices that a decoded token is multiplied with
  // How many weights those are, by the bits of a packed code; 0: not packed.
  std::array<std::uint64_t, 9> weights_per_step{};
  // The first is the part of bytes_per_step that the router's choice reads; so many tokens, each with experts of its
  // own, go through all of them (Experts::count / Experts::used).
  std::uint64_t expert_bytes_per_step = 0;
  double tokens_of_all_experts = 1;
  // These are the parts of bytes, bytes_per_step and weights_per_step that are experts', which routers choose from, in
  // so many layers, the largest of so many bytes in a slot.
  std::uint64_t mixture_bytes = 0;
  std::uint64_t mixture_bytes_per_step = 0;
  std::array<std::uint64_t, 9> mixture_weights_per_step{};
  int mixture_layers = 0;
  int experts = 0;  // of a layer
  std::uint64_t slot_bytes = 0;
  // A processor beside a device reads so much of them for each token, which is then no part of the numbers above.
  std::uint64_t near_bytes_per_step = 0;
  // So much of them is expected over the link for each token, which the device reads besides.
  std::uint64_t link_bytes_per_step = 0;

  // Returns the bytes of matrices that one pass of T tokens reads, each matrix once: with experts at most, as if the
  // tokens chose others as long as there are any.
  std::uint64_t bytes_per_pass(int T) const;
};
// Returns the sizes of weights that are there, those of a model of that shape, as if all of them lay together.
WeightSizes weight_sizes(const Weights& weights, const ModelConfig& config);
// Returns what load_weights will take, from the file headers alone. The head's weights are among the bytes, not among
// those of a step.
WeightSizes weight_sizes(Checkpoint& checkpoint, WeightForm form = WeightForm::stored, bool head = false);
// Returns the sizes of a model that is not there, with its matrices in `type`.
WeightSizes weight_sizes(const ModelConfig& config, gpu::DType type, WeightForm form = WeightForm::stored);
// With its matrices packed as those of such tensors are, where their rows are whole blocks, else in f16.
WeightSizes weight_sizes(const ModelConfig& config, gguf::TensorType type);

// Returns the sizes of the head that predicts further tokens: `bytes` are its own, and a step reads the model's output
// besides. There is a head.
WeightSizes head_sizes(const Weights& weights, const ModelConfig& config);
// Returns nothing where there is no head, or none that is computed here; its matrices are as weight_sizes() has them.
std::optional<WeightSizes> head_sizes(Checkpoint& checkpoint, WeightForm form = WeightForm::stored);
// Returns the same of a model that is not there.
std::optional<WeightSizes> head_sizes(const ModelConfig& config, gpu::DType type, WeightForm form = WeightForm::stored);
// Returns the same with its matrices packed.
std::optional<WeightSizes> head_sizes(const ModelConfig& config, gguf::TensorType type);

}  // namespace hayloft::runtime
