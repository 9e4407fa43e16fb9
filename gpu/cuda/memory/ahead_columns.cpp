#include "gpu/cuda/memory/ahead_columns.h"

#include <algorithm>
#include <utility>

#include "gpu/cuda_memory.h"
#include "offload/error.h"

namespace hayloft::gpu::cuda {

AheadColumns::~AheadColumns() {
  cudaStreamSynchronize(stream_);
  for (auto& [first, choice] : choices_) release(choice, context_.compute);
  for (Piece& piece : pieces_) release(piece, context_.compute);
}

namespace {

// Returns whether a fetch of these blocks serves a step that reads those of `view`.
bool serves(const std::vector<std::uint64_t>& serials, const offload::LayerView& view) {
  return !serials.empty() && serials.size() <= view.serials.size() &&
         view.serials.size() - serials.size() <= AheadLayout::later_blocks &&
         std::equal(serials.begin(), serials.end(), view.serials.begin());
}

}  // namespace

void AheadColumns::stop(Piece& piece, cudaStream_t stream) noexcept {
  if (!std::exchange(piece.pending, false)) return;
  cudaMemsetAsync(AheadBlocks{piece.layout, piece.memory}.stop(), 1, sizeof(unsigned), in_order_quietly(stream));
}

// Choices may not have been left, and what was fetched by them is none.
void AheadColumns::forget_lost() noexcept {
  if (!lost_.any()) return;
  for (auto& [first, choice] : choices_) choice.wanted = false;
  for (Piece& piece : pieces_) piece.serials.clear();
}

void AheadColumns::settle(cudaStream_t stream) noexcept {
  if (!under_way_) return;
  const std::lock_guard lock(mutex_);
  for (Piece& piece : pieces_) {
    const bool pending = piece.pending;
    stop(piece, stream);
    piece.pending = pending;  // its step may read what has come
  }
  try {
    context_.order(stream_, stream);
    if (stream == context_.compute) under_way_ = false;
  } catch (const Error&) {  // the device is lost, and nothing is read any more
  }
}

void AheadColumns::start(cudaStream_t stream) {
  context_.order(stream, stream_);
  under_way_ = true;
}

void* AheadColumns::allocate(std::uint64_t bytes, cudaStream_t stream) {
  const std::uint64_t budget = context_.arena.budget_bytes(), used = context_.arena.used_bytes();
  if (bytes > (budget - std::min(budget, used)) / cuda_ahead_part) return nullptr;
  if (refused_at_ > 0 && uses_ - refused_at_ < kPatience) return nullptr;
  ++busy_;  // or it might be asked to free what it has
  void* memory = nullptr;
  try {
    memory = context_.arena.allocate(bytes, stream);
    bytes_ += bytes;
  } catch (const Error&) {  // the device has less than its budget says
    refused_at_ = uses_;
  }
  --busy_;
  return memory;
}

void AheadColumns::release(Piece& piece, cudaStream_t stream) noexcept {
  if (piece.memory) {
    stop(piece, stream);
    settle(stream);
    context_.arena.free(piece.memory, piece.bytes, stream);
    bytes_ -= piece.bytes;
  }
  piece.memory = nullptr;
  piece.serials.clear();
  piece.pending = false;
}

void AheadColumns::release(Choice& choice, cudaStream_t stream) noexcept {
  if (choice.memory) {
    settle(stream);
    context_.arena.free(choice.memory, choice.bytes(), stream);
    bytes_ -= choice.bytes();
  }
  choice = {};
}

AheadColumns::Choice* AheadColumns::choice_for(const offload::LayerView& view, int rank, cudaStream_t stream) {
  Choice& choice = choices_[view.serials.front()];
  choice.used = ++uses_;
  if (choice.memory && (choice.rank != rank || choice.kv_heads != view.layout->kv_heads)) release(choice, stream);
  if (choice.memory) return &choice;
  choice = {nullptr, rank, view.layout->kv_heads, true, uses_};
  choice.memory = static_cast<std::int32_t*>(allocate(choice.bytes(), stream));
  if (choice.memory == nullptr) {
    choices_.erase(view.serials.front());
    return nullptr;
  }
  choice.wanted = false;  // until a step has left its choice
  if (choices_.size() > kChoices) {
    const auto oldest = std::min_element(choices_.begin(), choices_.end(),
                                         [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    release(oldest->second, stream);
    choices_.erase(oldest);
  }
  return &choice;
}

std::unique_ptr<AheadColumns::Use> AheadColumns::use(const offload::LayerView& view, int rank, cudaStream_t stream) {
  std::unique_lock lock(mutex_);
  forget_lost();
  Choice* const choice = choice_for(view, rank, stream);
  if (choice == nullptr) return {};
  std::unique_ptr<Use> use(new Use(*this, std::move(lock), *choice));
  for (Piece& piece : pieces_) {
    if (piece.layout.rank != rank || !serves(piece.serials, view)) continue;
    use->fetched_ = AheadBlocks{piece.layout, piece.memory, piece.pending};
    if (std::exchange(piece.pending, false)) use->stop_ = use->fetched_->stop();
    use->piece_ = &piece;
    break;
  }
  return use;
}

AheadColumns::Piece* AheadColumns::piece_for(const offload::LayerView& view) {
  const auto find = [&](const auto& wanted) {
    const auto found = std::find_if(pieces_.begin(), pieces_.end(), wanted);
    return found == pieces_.end() ? nullptr : &*found;
  };
  if (Piece* const own = find([&](const Piece& piece) { return serves(piece.serials, view); })) return own;
  if (Piece* const read = find([](const Piece& piece) { return !piece.pending; })) return read;
  if (pieces_.size() < kPieces) return &pieces_.emplace_back();
  return find([&](const Piece& piece) { return uses_ - piece.used > kForgotten; });
}

bool AheadColumns::wants(const offload::LayerView& view) const {
  const std::lock_guard lock(mutex_);
  const auto found = choices_.find(view.serials.front());
  return found != choices_.end() && found->second.wanted;
}

// Leaves room for some blocks more, so that a sequence that grows does not ask for memory at each.
bool AheadColumns::make_room(Piece& piece, const AheadLayout& layout, cudaStream_t stream) {
  if (piece.memory && piece.bytes >= layout.bytes()) return true;
  release(piece, stream);
  AheadLayout larger = layout;
  larger.blocks += 1 + layout.blocks / 8;
  for (const AheadLayout& wanted : {larger, layout}) {
    piece.memory = static_cast<std::byte*>(allocate(wanted.bytes(), stream));
    piece.bytes = wanted.bytes();
    if (piece.memory) return true;
  }
  return false;
}

std::optional<AheadColumns::Fetch> AheadColumns::begin(const offload::LayerView& view, cudaStream_t stream) {
  std::unique_lock lock(mutex_);
  forget_lost();
  if (busy_ > 0) return {};
  const auto found = choices_.find(view.serials.front());
  if (found == choices_.end() || !found->second.wanted) return {};
  Choice& choice = found->second;
  const AheadLayout layout{RunLayout(*view.layout), choice.rank, static_cast<std::int64_t>(view.blocks.size())};
  // A place has 32 bits for where its column lies (RunPlaces).
  if (choice.kv_heads != layout.runs.kv_heads || layout.block_bytes() > UINT32_MAX) return {};
  Piece* const found_piece = piece_for(view);
  if (found_piece == nullptr) return {};
  Piece& piece = *found_piece;
  stop(piece, stream);
  piece.serials.clear();
  if (!make_room(piece, layout, stream)) return {};
  piece.layout = layout;
  piece.used = ++uses_;
  // Waits for what is on its way of the last fetch, if no step has.
  if (piece.fetched && !(piece.awaited && stream == context_.compute)) piece.fetched->wait(stream);
  return Fetch{{layout, piece.memory}, &piece, &choice, std::move(lock)};
}

void AheadColumns::queued(const Fetch& fetch, const offload::LayerView& view) {
  if (!fetch.piece->fetched) fetch.piece->fetched = std::make_unique<Event>();
  fetch.piece->fetched->record(stream_);
  fetch.piece->serials.assign(view.serials.begin(), view.serials.end());
  fetch.piece->pending = true;
  fetch.piece->awaited = false;
  fetch.choice->wanted = false;  // if no step comes, not again
}

std::uint64_t AheadColumns::spare() noexcept {
  const std::lock_guard lock(mutex_);
  if (busy_ > 0) return 0;
  const std::uint64_t before = bytes_;
  for (Piece& piece : pieces_) release(piece, context_.compute);
  for (auto& [first, choice] : choices_) release(choice, context_.compute);
  pieces_.clear();
  choices_.clear();
  return before - bytes_;
}

}  // namespace hayloft::gpu::cuda
