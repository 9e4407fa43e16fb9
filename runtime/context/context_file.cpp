#include "runtime/context/context_file.h"

#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "runtime/context/file_form.h"
#include "runtime/context/ingest.h"
#include "runtime/peers/agreement.h"

namespace hayloft::runtime {
namespace {

const FileForm& form_at(const ContextFile::Place& place) {
  return place.ranks->several() ? shards_of_ranks() : one_file();
}

}  // namespace

ContextFile::ContextFile(const FileForm& form, const Place& place, offload::SnapshotWriter writer, bool anew)
    : form_(&form), place_(place), writer_(std::move(writer)), anew_(anew) {}

ContextFile ContextFile::create(const Place& place, offload::SnapshotDescription description) {
  const FileForm& form = form_at(place);
  return {form, place, form.create(place, std::move(description)), true};
}

std::optional<ContextFile> ContextFile::open_part(const Place& place, std::span<const std::int32_t> tokens) {
  const FileForm& form = form_at(place);
  auto writer = form.open_part(place, tokens);
  if (!writer) return std::nullopt;
  return ContextFile(form, place, std::move(*writer), true);
}

void ContextFile::drop_empty_part(const Place& place) noexcept {
  form_at(place).drop_empty_part(place);
}

std::optional<std::filesystem::path> ContextFile::left_part(const Place& place) {
  return form_at(place).left_part(place);
}

bool ContextFile::may_be_rewritten() const {
  return anew_ && form_->may_be_rewritten();
}

ContextFile ContextFile::open_existing(const Place& place) {
  const FileForm& form = form_at(place);
  FileForm::Existing existing = form.open_existing(place);
  ContextFile file(form, place, std::move(existing.writer), false);
  file.said_tokens_ = existing.said_tokens;
  return file;
}

void ContextFile::checkpoint(const Session& session, std::span<const std::int32_t> tokens,
                             std::span<const offload::SnapshotAttachment> attachments, bool complete) {
  together(*place_.ranks, [&] { save_checkpoint(writer_, session, tokens, attachments, complete); });
}

std::uint64_t ContextFile::bytes() const {
  return form_->bytes(place_, writer_);
}

bool ContextFile::named() const {
  return form_->named(writer_, said_tokens_);
}

void ContextFile::finish() {
  form_->finish(place_, writer_, anew_);
}

void save_checkpoint(offload::SnapshotWriter& writer, const Session& session, std::span<const std::int32_t> tokens,
                     std::span<const offload::SnapshotAttachment> attachments, bool complete) {
  const std::vector<offload::SnapshotTail> tails = session.cache().tails();
  std::vector<offload::TailImage> images;
  for (const offload::SnapshotTail& tail : tails) images.push_back(tail.image());
  writer.checkpoint(session.cache().store(), tokens, images, attachments, complete);
}

void require_new(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  fail("{}: exists already; choose another name, remove it, or go on with it by --append", path.string());
}

}  // namespace hayloft::runtime
