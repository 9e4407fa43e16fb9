#include "runtime/checkpoint/fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "offload/error.h"
#include "runtime/checkpoint/gguf/file.h"

namespace hayloft::runtime {
namespace {

constexpr std::uint64_t beginning_bytes = 1 << 20;  // of a file; the table of tensors of most lies within
constexpr std::uint64_t sample_bytes = 4096;
constexpr std::uint64_t samples = 512;

class Hash {
 public:
  Hash() : state_(XXH3_createState()) {
    if (!state_) throw std::bad_alloc();
    XXH3_128bits_reset(state_.get());
  }

  void add(std::string_view bytes) {
    const std::uint64_t size = bytes.size();  // so that neighbours cannot trade bytes
    XXH3_128bits_update(state_.get(), &size, sizeof size);
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }

  Fingerprint digest() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
    Fingerprint out;
    std::memcpy(out.data(), canonical.digest, out.size());
    return out;
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path), file_(path, std::ios::binary) {
    std::error_code error;
    bytes_ = std::filesystem::file_size(path, error);
    if (error || !file_) fail("{}: cannot be read: {}", path.string(), error ? error.message() : std::strerror(errno));
  }

  std::uint64_t bytes() const { return bytes_; }

  std::string at(std::uint64_t offset, std::uint64_t count) {
    std::string text(std::min(count, bytes_ - std::min(offset, bytes_)), '\0');
    file_.seekg(static_cast<std::streamoff>(offset));
    if (!file_.read(text.data(), static_cast<std::streamsize>(text.size()))) fail("{}: reading failed", path_.string());
    return text;
  }

 private:
  std::filesystem::path path_;
  std::ifstream file_;
  std::uint64_t bytes_;
};

// `beginning` bytes of the file count whole, or more.
void add_weights(Hash& hash, const std::filesystem::path& path, bool named, std::uint64_t beginning = 0) {
  Reader file(path);
  if (named) hash.add(path.filename().string());
  hash.add(std::to_string(file.bytes()));
  hash.add(file.at(0, std::max(beginning, beginning_bytes)));
  for (std::uint64_t i = 0; i < samples && file.bytes() > beginning_bytes; ++i) {
    hash.add(file.at(beginning_bytes + (file.bytes() - beginning_bytes) / samples * i, sample_bytes));
  }
}

struct OfGguf {  // what counts of its files besides their weights
  bool names = false, whole_headers = true;
};

Fingerprint digest(const std::filesystem::path& model, std::string_view run, OfGguf counts = {}) {
  Hash hash;
  if (!run.empty()) hash.add(run);
  if (gguf::is_file(model)) {
    const gguf::File file(model);
    for (std::size_t part = 0; part < file.paths().size(); ++part) {
      add_weights(hash, file.paths()[part], counts.names, counts.whole_headers ? file.header_bytes()[part] : 0);
    }
    return hash.digest();
  }
  for (const char* name : {"config.json", "tokenizer.json"}) {
    Reader file(model / name);
    hash.add(file.at(0, file.bytes()));
  }
  std::vector<std::filesystem::path> weights;
  for (const auto& entry : std::filesystem::directory_iterator(model)) {
    if (entry.path().extension() == ".safetensors") weights.push_back(entry.path());
  }
  std::sort(weights.begin(), weights.end());
  for (const auto& path : weights) add_weights(hash, path, true);
  return hash.digest();
}

}  // namespace

Fingerprint fingerprint(const std::filesystem::path& model, std::string_view run) {
  return digest(model, run);
}

Fingerprint former_fingerprint(const std::filesystem::path& model, const Fingerprint& now, std::string_view run) {
  const Fingerprint by_beginning = digest(model, run, {.whole_headers = false});
  if (by_beginning != now) return by_beginning;
  return digest(model, run, {.names = true, .whole_headers = false});
}

}  // namespace hayloft::runtime
