#include "runtime/checkpoint/draft_head.h"

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

constexpr const char* other_drafts = "use --draft lookup or --draft lookup,self";

bool has_own_tables(const Checkpoint& checkpoint, const ModelConfig& config) {
  return config.draft_own_tables || checkpoint.contains("mtp.embed_tokens.weight") ||
         checkpoint.contains("mtp.shared_head.head.weight");
}

}  // namespace

bool has_draft_head(const Checkpoint& checkpoint) {
  return checkpoint.contains("mtp.fc.weight");
}

bool computes_draft_head(const Checkpoint& checkpoint, const ModelConfig& config) {
  return has_draft_head(checkpoint) && config.draft_layers <= 1 && !has_own_tables(checkpoint, config);
}

bool says_draft_head(const ModelConfig& config) {
  return config.draft_layers == 1 && !config.draft_own_tables;
}

void require_draft_head(const Checkpoint& checkpoint, const ModelConfig& config) {
  if (!has_draft_head(checkpoint)) {
    fail("--draft mtp: {} has no head that predicts further tokens (mtp, nextn); {}", checkpoint.path(), other_drafts);
  }
  if (config.draft_layers > 1) {
    fail("--draft mtp: the head of {} has {} layers, and one is computed here; {}", checkpoint.path(),
         config.draft_layers, other_drafts);
  }
  if (has_own_tables(checkpoint, config)) {
    fail("--draft mtp: the head of {} has embeddings or an output of its own, which are not read; {}",
         checkpoint.path(), other_drafts);
  }
}

ModelConfig draft_head_config(const ModelConfig& config) {
  ModelConfig head = config;
  head.layers = 1;
  head.sliding_window = {draft_head_positions};
  head.recurrent = {};
  head.delta = {};
  head.rope = {true};
  head.experts.dense = {};
  if (head.experts.count > 0) {
    head.intermediate_size = head.experts.used * head.experts.inner + head.experts.shared_inner;
  }
  return head;
}

}  // namespace hayloft::runtime
