#include "runtime/decode/draft_head.h"

#include <algorithm>

#include "runtime/checkpoint/draft_head.h"

namespace hayloft::runtime {
namespace {

constexpr std::size_t kPiece = 256;  // tokens that are read at a time: what is joined of them takes little memory

// Takes back what is decoded while it lives.
struct Drafted {
  explicit Drafted(Cache& of) : cache(of) { cache.begin_drafts(); }
  ~Drafted() { cache.end_drafts(); }
  Drafted(const Drafted&) = delete;
  Drafted& operator=(const Drafted&) = delete;
  Cache& cache;
};

}  // namespace

DraftHead::DraftHead(const Model& head, offload::Arena& arena)
    : head_(&head), arena_(&arena), cache_(head.backend(), arena, head.config(), {}) {}

DraftHead::DraftHead(const DraftHead& other, Cache cache)
    : head_(other.head_), arena_(other.arena_), cache_(std::move(cache)), told_(other.told_) {
  if (!other.state_) return;
  gpu::Backend& backend = head_->backend();
  state_ = backend.allocate(other.state_.bytes(), backend.stream());
  backend.copy(state_.as<void>(), other.state_.as<void>(), state_.bytes(), backend.stream());
}

DraftHead DraftHead::fork_at(std::int64_t tokens) const {
  return knows(tokens) ? DraftHead(*this, cache_.fork()) : DraftHead(*head_, *arena_);
}

void DraftHead::begin() {
  cache_ = Cache(head_->backend(), *arena_, head_->config(), {});
  state_ = {};
}

Workspace& DraftHead::own(Workspace& workspace) {
  if (!workspace.head) workspace.head = std::make_shared<Workspace>();
  return *workspace.head;
}

void DraftHead::read(std::int64_t before, std::span<const std::int32_t> tokens, const float* states,
                     Workspace& workspace) {
  if (tokens.empty()) return;
  if (!knows(before)) begin();
  gpu::Backend& backend = head_->backend();
  const auto hidden = static_cast<std::size_t>(head_->config().hidden_size);
  if (state_) head_->read_behind(cache_, own(workspace), tokens.first(1), state_.as<float>());
  for (std::size_t at = 1; at < tokens.size(); at += kPiece) {
    const std::span<const std::int32_t> piece = tokens.subspan(at, std::min(kPiece, tokens.size() - at));
    head_->read_behind(cache_, own(workspace), piece, states + (at - 1) * hidden);
  }
  const std::uint64_t bytes = hidden * sizeof(float);
  if (!state_) state_ = backend.allocate(bytes, backend.stream());
  backend.copy(state_.as<void>(), states + (tokens.size() - 1) * hidden, bytes, backend.stream());
  told_ = before + static_cast<std::int64_t>(tokens.size());
}

std::uint64_t DraftHead::kept_bytes(const Model& head, std::int64_t tokens) {
  const std::int64_t most = std::min(tokens, 2 * draft_head_positions);
  const std::uint64_t state = static_cast<std::uint64_t>(head.config().hidden_size) * sizeof(float);
  return tail_bytes(head.config(), {}, most, static_cast<int>(kPiece)) + state;
}

std::uint64_t DraftHead::bytes_to_read() const {
  const ModelConfig& config = head_->config();
  const auto piece = static_cast<int>(kPiece);
  const std::uint64_t joined = 4 * kPiece * static_cast<std::uint64_t>(config.hidden_size) * sizeof(float);
  return kept_bytes(*head_, 2 * draft_head_positions) + workspace_bytes(config, piece) + joined;
}

std::vector<std::int32_t> DraftHead::draft(std::int32_t token, int most, Workspace& workspace,
                                           const std::function<std::int32_t(const float* logits)>& draw) {
  std::vector<std::int32_t> tokens;
  const Drafted drafted(cache_);
  const float* state = state_.as<float>();
  while (state != nullptr && static_cast<int>(tokens.size()) < most) {
    state = head_->predict_behind(cache_, own(workspace), token, state, [&](const float* logits) {
      token = draw(logits);
      tokens.push_back(token);
    });
  }
  return tokens;
}

}  // namespace hayloft::runtime
