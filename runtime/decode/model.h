#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/backend.h"
#include "runtime/cache/cache.h"
#include "runtime/checkpoint/config.h"
#include "runtime/checkpoint/weights/expert_placement.h"
#include "runtime/decode/attention_policy.h"
#include "runtime/decode/expert_slots.h"

namespace hayloft::runtime {

// Returns so many numbers rounded up to 16 bytes of them, so that what follows rows of them is aligned.
constexpr std::int64_t aligned_width(std::int64_t numbers) {
  return (numbers + 3) / 4 * 4;
}

// The positions whose logits are wanted. `none` lets the last layer stop at K and V: nothing later needs the rest.
enum class Want : std::uint8_t { none, last, all };

// The place where a forward pass notes down a NaN or an infinity: i32, the first layer that has one.
struct NanFlag {
  gpu::Buffer device;
  std::shared_ptr<std::byte> host;  // where it comes to
};

// Device memory for the activations of up to T tokens. Grows on demand; one per session.
struct Workspace {
  gpu::Buffer memory;
  gpu::Buffer logits;
  NanFlag flag;
  gpu::Buffer near;  // of what the processor beside the device computes
  MethodScratch scratch;
  int capacity = 0;
  gpu::Buffer recurrent;  // of Model::verify: what recurrent layers were given of the tokens of a pass
  // For sequences that go through the layers together, one entry each.
  gpu::Buffer hidden;  // f32 [sequences][hidden]
  std::vector<NanFlag> flags;
  // For a head that predicts further tokens: f32 [2][T][hidden], and the same joined, [T][2 hidden].
  gpu::Buffer joined;
  std::shared_ptr<Workspace> head;  // that it computes in
};

// Returns what a workspace takes once up to T tokens have gone through it and one token's logits have been asked for.
std::uint64_t workspace_bytes(const ModelConfig& config, int T);
// Returns what Backend::scratch_bytes() wants to know of that model, for chunks of T tokens.
gpu::ScratchShape scratch_shape(const ModelConfig& config, int T);

// Given the logits wanted, f32 [1][vocab] or [T][vocab] in memory of the device. Waits for the backend's stream, as
// Backend::to_host() and top_values() do.
using ReadLogits = std::function<void(const float* logits)>;

// Given the logits of the T tokens of a pass, f32 [T][vocab] in memory of the device, which has been waited for.
// Returns how many of the tokens stay, 1 to T.
using KeepTokens = std::function<int(const float* logits, int T)>;

// Given the states of those tokens behind the last layer and its norm, f32 [tokens][hidden] in memory of the device,
// which hold until it returns; what it queues goes to the backend's stream.
using SeeStates = std::function<void(std::span<const std::int32_t> tokens, const float* states)>;

// Says what stays in memory of the device while chunks of a prompt go through layer by layer.
struct OnDevice {
  // A global layer's K and V, until all chunks are through it (Cache::keep_layer_on_device), so that none of them
  // crosses the link to be attended to.
  bool layer = false;
  bool hidden = false;  // the hidden states of all tokens; they come and go otherwise (HiddenStates)
};

// One token of one of several sequences that go through the layers together.
struct ModelStep {
  Cache* cache = nullptr;
  std::int32_t token = 0;
  AttentionPolicy* attention = nullptr;
  ReadLogits read;             // f32 [1][vocab] of what follows
  std::exception_ptr failure;  // out: what went wrong with this one, whose cache is then as before
};

// A decoder-only transformer on one backend. Immutable and thread-safe after construction: sequences bring their own
// cache and workspace.
class Model {
 public:
  // Takes the checkpoint's weights to the backend; it is not needed afterwards. Where a backend without memory of its
  // own computes, experts have one place. `head`: with the head that predicts further tokens, which drafts for its
  // sessions (DraftOptions::head). Throws Error, also where there is no such head.
  Model(Checkpoint& checkpoint, gpu::Backend& backend, WeightForm form = WeightForm::stored,
        const RopeOverrides& rope = {}, ExpertPlace experts = ExpertPlace::automatic, bool head = false);
  // Reads a folder or GGUF file (Checkpoint::open).
  Model(const std::filesystem::path& path, gpu::Backend& backend, WeightForm form = WeightForm::stored,
        const RopeOverrides& rope = {}, ExpertPlace experts = ExpertPlace::automatic, bool head = false);

  // Before anything is read: contexts will have so many tokens. A RoPE that depends on it (dynamic, longrope) is made
  // for contexts as long as the model was made for until then. Not for saved contexts, which are all read that way.
  void expect_positions(std::int64_t positions);

  // Before anything is read: keeps experts that lie in the machine's memory as this says, and multiplies them there.
  // Leaves those on the device where they are. Throws Error.
  void place_experts(const ExpertPlacement& placement);

  const ModelConfig& config() const { return config_; }
  // Throws Error where one of these ids is none of the vocabulary's.
  void check_ids(std::span<const std::int32_t> tokens) const;
  // Returns what it computes with besides its files, as options: RoPE that was overridden, and the form of its weights.
  // A model goes on with what one of the same options has read, and with nothing else.
  std::string run_options() const;
  gpu::Backend& backend() const { return *backend_; }
  std::uint64_t weight_bytes() const { return weights_.bytes; }
  const ExpertPlacement& expert_placement() const { return placement_; }
  // Returns the bytes of experts that lie in the machine's memory beside a device with memory of its own.
  std::uint64_t host_expert_bytes() const;
  // Returns what passes have asked of experts that come over the link, so far.
  ExpertTraffic expert_traffic() const { return slots_ ? slots_->traffic() : ExpertTraffic{}; }
  const WeightSizes& weight_sizes() const { return weight_sizes_; }
  const std::vector<std::string>& skipped() const { return weights_.skipped; }  // parts left out, a line each
  const std::vector<std::string>& notes() const { return weights_.notes; }  // what the user should know, a line each

  // Runs `tokens` behind what is in the cache and adds their K and V to it. Global layers attend as `attention` says.
  // The logits wanted go to `read` before the tokens count: if it throws, or anything else does, the cache is as
  // before. Throws Error naming the layer when a NaN or an infinity appears, and on an id that the vocabulary has not;
  // std::logic_error on a cache of another model. `see`: is given the states of all tokens, unless Want::last leaves
  // some of them out.
  void forward(Cache& cache, Workspace& workspace, std::span<const std::int32_t> tokens, Want want,
               AttentionPolicy& attention, const ReadLogits& read = {}, const SeeStates& see = {}) const;

  // forward() of one token each of several sequences, Want::last, to the bit, but with the loop over the layers
  // outside. On the CPU backend up to eight tokens are multiplied with a matrix at once, which is then read once for
  // all of them, and blocks that they share are read once where they attend to ranges alone
  // (AttentionPolicy::attend_or_leave). What fails in one does not touch the others; what fails in a part that is
  // common to some is the failure of each of those. Throws nothing.
  void forward_together(std::span<ModelStep> steps, Workspace& workspace) const;

  // forward() of the tokens one by one, Want::last, to the bit, but in one pass in which matrices, and blocks of the
  // context, are read once for all of them. The tokens that `keep` does not keep leave no trace; if it throws, or
  // anything else does, none does. At most verified_at_once() tokens, and as many as Cache::tokens_up_to_spill(), by a
  // policy in which each_as_alone(). Should a NaN or an infinity appear, `keep` is asked about the first token alone.
  // `see` is given the states of those that stay. Returns how many stay.
  int verify(Cache& cache, Workspace& workspace, std::span<const std::int32_t> tokens, AttentionPolicy& attention,
             const KeepTokens& keep, const SeeStates& see = {}) const;
  int verified_at_once() const;  // Backend::tokens_verified_at_once() of this model

  // Does what forward(..., Want::none) does with the tokens `chunk` at a time, to the bit, but with the loop over the
  // layers outside: every chunk goes through a layer before the next layer. progress: tokens queued, as the share of
  // the work that is. `see` is given, in parts, the states of the newest `seen` tokens at least. If it throws, or
  // progress does, the cache is as before.
  void forward_by_layer(Cache& cache, Workspace& workspace, std::span<const std::int32_t> tokens, int chunk,
                        AttentionPolicy& attention, const OnDevice& on_device,
                        const std::function<void(std::int64_t done)>& progress = {}, const SeeStates& see = {},
                        std::int64_t seen = 0) const;

  // Returns the head that predicts further tokens, a model of one layer that slides (runtime/checkpoint/draft_head.h);
  // null where it was not asked for.
  const Model* head() const { return head_.get(); }
  // Adds to a head's cache what it keeps of tokens, each behind the model's state before it, f32 [tokens][hidden] in
  // memory of the device, which is not in the workspace.
  void read_behind(Cache& cache, Workspace& workspace, std::span<const std::int32_t> tokens, const float* states) const;
  // Does the same with one token and gives the logits of what follows it to `read`. Returns the head's own state, in
  // the workspace, which may take the place of the model's at the next call; null, without reading, where a number is
  // not finite.
  const float* predict_behind(Cache& cache, Workspace& workspace, std::int32_t token, const float* state,
                              const ReadLogits& read) const;

 private:
  explicit Model(const Model& whole);  // its head
  // A step that fails leaves nothing behind in the cache.
  struct Uncommitted {
    Cache& cache;
    ~Uncommitted() { cache.abandon(); }
  };
  // Mixtures of experts work in these pieces, in memory of the backend that computes them, all f32: a token's logits of
  // the router and of the gate; its inputs to each of its experts; their outputs, and behind those of all tokens the
  // outputs of the expert that all tokens share.
  struct Mixture {
    float* gate;      // [T used][inner], [T][shared inner]
    float* up;        // likewise
    float* delta;     // [T][hidden]
    float* routed;    // [T][experts], and [T] behind [T][aligned_width(experts)]
    float* gathered;  // [T used][hidden]
    float* outputs;   // [T used][hidden], [T][hidden]
    float* input;     // [T][hidden], near the processor
  };
  // Pieces of the workspace, all f32; see the shapes. In a recurrent layer q holds inputs [T][channels], k and v hold
  // a and b [T][Hv], and mixed what comes of them, [T][values].
  struct Activations {
    float* hidden;       // [T][hidden]
    float* normed;       // [T][hidden]
    float* q;            // [T][Hq d]
    float* k;            // [T][Hkv d]
    float* v;            // [T][Hkv d]
    float* mixed;        // [T][Hq d], what attention returns
    float* gate;         // [T][intermediate]
    float* up;           // likewise
    float* delta;        // [T][hidden], added to the residual stream
    float* output_gate;  // [T][Hq d] where attention has gates; [T][values]
    Mixture mixture;
    Mixture near;  // where the processor beside the device multiplies experts
  };
  void require_own(const Cache& cache) const;
  void clear_flag(NanFlag& flag) const;
  // The flag's copy to the host is queued, and looked at once the stream has been waited for.
  void bring_flag(const NanFlag& flag) const;
  static bool is_finite(const NanFlag& flag);
  void require_finite(const NanFlag& flag, std::int64_t last_position) const;
  Activations prepare(Workspace& workspace, int T) const;
  // Says what comes behind a layer's part, once its output has been added to the residual stream.
  struct Behind {
    const float* norm = nullptr;    // that the stream goes under, into Activations::normed; null: none
    const NanFlag* flag = nullptr;  // that says whether all numbers of the layer are finite; null: nobody asks
  };
  // Returns the norm in front of the part that comes next, if the stream goes under one as a whole.
  const float* norm_before_mlp(int layer) const;
  const float* norm_behind(int layer) const;
  // `under_norm`: Activations::normed has the stream under the layer's norm.
  void attend(int layer, Cache& cache, Workspace& workspace, const Activations& act, int T, int rows,
              AttentionPolicy& policy, bool under_norm = false) const;
  void advance(int layer, Cache& cache, Workspace& workspace, const Activations& act, const float* input, int T,
               int rows) const;
  // The inputs of a recurrent layer for T tokens: f32 [T][channels], [T][Hv], [T][Hv].
  struct RecurrentInputs {
    float* channels;
    float* step;
    float* rate;
  };
  RecurrentInputs recurrent_inputs(int layer, Workspace& workspace, int T) const;
  void keep_inputs(int layer, Workspace& workspace, const Activations& act, int T) const;
  void advance_again(Cache& cache, Workspace& workspace, const Activations& act, int T, int kept) const;
  void project_delta(int layer, const float* input, int T, const Activations& act) const;
  void project_gate(int layer, const float* input, int rows, const Activations& act) const;
  void project_heads(int layer, const float* input, int T, bool and_q, const Activations& act) const;
  void project_q(int layer, const float* input, int T, const Activations& act) const;
  void norm_heads(float* x, int tokens, int heads, int d, const float* weight) const;
  void enter(int layer, Cache& cache, const Activations& act, int T, bool and_q) const;
  gpu::CacheView view_of(int layer, const Cache& cache) const;
  // Tells the backend which global layer attends next, behind this one, for one token; -1: which is the first.
  void fetch_ahead(int behind, const Cache& cache) const;
  void turn_q(int layer, float* q, int T, std::int64_t position) const;
  void mix(const LayerStep& at, const float* q, int queries, int rows, float* out, AttentionPolicy& policy,
           std::vector<gpu::AttendStep>* left = nullptr) const;
  void add_attention_output(int layer, const Activations& act, float* mixed, float* hidden, int rows) const;
  Activations row_of(int layer, const Activations& act, std::int64_t row) const;
  void output(Workspace& workspace, const Activations& act, int rows) const;
  void output_norm(const Activations& act, const float* hidden, int rows) const;
  void join(Workspace& workspace, std::span<const std::int32_t> tokens, const float* states,
            const Activations& act) const;
  void flag_logits(const float* logits, int rows, const NanFlag& flag) const;
  void flag_nonfinite(const float* x, std::int64_t n, std::int32_t tag, const NanFlag& flag) const;
  // Returns the experts that the rows go through; none where the layer has none.
  std::vector<ExpertTokens> mlp(int layer, const Activations& act, float* hidden, int rows, const Behind& behind) const;
  void show_experts(int layer, std::span<const ExpertTokens> chosen, std::int32_t row, std::int64_t position,
                    AttentionPolicy& attention) const;
  int tokens_as_alone() const;  // gpu::Backend::tokens_multiplied_as_alone(), wherever it is multiplied
  void activate(gpu::Backend& by, float* gate, const float* up, std::int64_t n) const;
  // A layer's input to its experts, and what goes through which of them.
  struct ToMix {
    const LayerWeights& weights;
    const float* input;  // [rows][hidden]
    int rows;
    std::span<const ExpertTokens> chosen;
  };
  std::vector<ExpertTokens> mix_experts(int layer, const Activations& act, const float* hidden, int rows) const;
  void multiply_mlp(const LayerWeights& w, const float* input, int rows, const Activations& act) const;
  void mix_near(const ToMix& what, const Activations& act) const;
  void multiply_experts(gpu::Backend& by, const Mixture& mixture, const ToMix& what,
                        std::span<const ExpertTokens> chosen, std::span<const Expert* const> experts,
                        std::int64_t first, bool shared) const;
  void embed(const std::int32_t* tokens, int T, float* hidden) const;
  void scale(float* x, std::int64_t n, float factor) const;
  const float* normed(const float* x, const float* norm, const Activations& act, int rows) const;
  gpu::Rope rope_of(int layer) const;
  void scale_queries(int layer, float* q, int T, std::int64_t position) const;
  void add_residual(int layer, float* hidden, const float* norm, const Activations& act, int rows,
                    const Behind& behind) const;

  ModelConfig config_;
  WeightForm form_;
  gpu::Backend* backend_;
  ExpertPlacement placement_;
  std::unique_ptr<gpu::Backend> near_;  // that multiplies experts where they are near the processor
  Weights weights_;
  WeightSizes weight_sizes_;
  std::unique_ptr<ExpertSlots> slots_;  // where experts come over the link
  std::unique_ptr<Model> head_;         // whose memory is that of weights_
};

}  // namespace hayloft::runtime
