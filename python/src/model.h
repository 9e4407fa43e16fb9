#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "python/src/machine.h"
#include "runtime/chat/chat_template.h"
#include "runtime/context/ingest.h"
#include "runtime/decode/session.h"
#include "runtime/tokenizer/tokenizer.h"

namespace hayloft::python {

// A model with its tokenizer, and memory for the K and V of its sessions. Thread-safe.
struct OpenModel {
  OpenModel(std::shared_ptr<Machine> machine, const std::filesystem::path& path, const std::string& weights,
            const std::string& experts, std::int64_t positions, bool head);

  runtime::ModelSource source() const { return {model, tokenizer, path}; }
  // Throws Error where the model was made for so many positions that its RoPE is not the one saved contexts are read
  // with.
  void require_rope_of_contexts() const;

  std::shared_ptr<Machine> machine;
  std::filesystem::path path;
  runtime::Tokenizer tokenizer;
  runtime::Model model;
  std::unique_ptr<offload::Arena> arena;
  std::int64_t stretched_to = 0;  // positions, where another number of them has another RoPE
};

// The model's own chat template. Throws Error where it has none.
runtime::ChatTemplate model_template(const OpenModel& model);

// Throws Error unless it is "f16", "int8" or "int4".
offload::ColumnFormat column_format(const std::string& text);
offload::RowFormat row_format(const std::string& text);

}  // namespace hayloft::python
