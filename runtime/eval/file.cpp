#include "runtime/eval/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/text_file.h"

namespace hayloft::runtime::eval {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* schema = "hayloft.eval/1";

std::string row_key(const std::string& task, std::int64_t ctx_size, int sample, const std::string& prefill,
                    const MethodOptions& attn) {
  return fmt::format("{} {} {} {} {}", task, ctx_size, sample, prefill, method_key(attn));
}

// Says where two recipes differ, "seed 1 (here 2)". What one of them leaves out has its default there.
std::string difference(const json& there, const json& here) {
  std::string text;
  const auto shown = [](const json& value) -> std::string { return value.is_null() ? "default" : value.dump(); };
  json fields = here;
  if (there.is_object()) fields.update(there);
  for (const auto& [field, value] : fields.items()) {
    const json theirs = there.is_object() ? there.value(field, json()) : json(), ours = here.value(field, json());
    if (theirs != ours)
      text += fmt::format("{}{} {} (here {})", text.empty() ? "" : ", ", field, shown(theirs), shown(ours));
  }
  return text;
}

}  // namespace

EvalFile::EvalFile(const std::filesystem::path& path, const EvalRecipe& recipe) : path_(path) {
  digest_ = recipe_digest(recipe);
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("--out {}: cannot be written: {}", path.string(), std::generic_category().message(errno));
  try {
    require_regular();
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) fail("--out {}: another run is writing to it", path.string());
    read(offload::read_file_bytes("--out", path), recipe_json(recipe));
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

// Refuses what is no regular file: rows are read back, which has no end at a device and none yet at a pipe.
void EvalFile::require_regular() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode)) return;
  fail("--out {}: is no regular file, and a run goes on from the rows that it has; name a file", path_.string());
}

EvalFile::~EvalFile() {
  ::close(descriptor_);
}

// The first line has the recipe, every other one a row. What stands behind the last newline was cut off.
void EvalFile::read(const std::string& content, const std::string& recipe) {
  const std::string header =
      ordered_json({{"schema", schema}, {"recipe", digest_}, {"options", ordered_json::parse(recipe)}}).dump();
  std::size_t begin = 0;
  int number = 0;
  for (std::size_t end = 0; (end = content.find('\n', begin)) != std::string::npos; begin = end + 1) {
    ++number;
    const std::string line = content.substr(begin, end - begin);
    if (number > 1) {
      const std::string where = fmt::format("--out {}, line {}", path_.string(), number);
      rows_.push_back(parse_eval_row(line, digest_, where));
      const EvalRow& row = rows_.back();
      if (!keys_.insert(row_key(row.task, row.ctx_size, row.sample, row.prefill, row.attn)).second) {
        fail("{}: damaged: an earlier line has the same answer; take one of them out", where);
      }
      continue;
    }
    const json there = json::parse(line, nullptr, false);
    if (!there.is_object() || there.value("schema", json()) != schema) {
      fail("--out {}: is there already and is no file of hayloft eval", path_.string());
    }
    if (there.value("recipe", json()) != digest_) {
      fail("--out {}: was written by another recipe: {}; name another file or use the same options", path_.string(),
           printable(difference(there.value("options", json()), json::parse(recipe))));
    }
  }
  const bool fresh = number == 0;
  if (fresh && !content.empty() && header.compare(0, std::min(content.size(), header.size()), content) != 0) {
    fail("--out {}: is there already and is no file of hayloft eval", path_.string());
  }
  if (::ftruncate(descriptor_, static_cast<off_t>(begin)) != 0 || ::lseek(descriptor_, 0, SEEK_END) < 0) {
    fail("--out {}: cannot be written: {}", path_.string(), std::generic_category().message(errno));
  }
  if (fresh) write(header);
}

bool EvalFile::has(const std::string& task, std::int64_t ctx_size, int sample, const std::string& prefill,
                   const MethodOptions& attn) const {
  return keys_.count(row_key(task, ctx_size, sample, prefill, attn)) > 0;
}

void EvalFile::add(const EvalRow& row) {
  write(eval_row_json(row, digest_));
  keys_.insert(row_key(row.task, row.ctx_size, row.sample, row.prefill, row.attn));
  rows_.push_back(row);
}

void EvalFile::write(const std::string& line) {
  const std::string whole = line + '\n';
  for (std::size_t done = 0; done < whole.size();) {
    const ssize_t written = ::write(descriptor_, whole.data() + done, whole.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("--out {}: cannot be written: {}", path_.string(), std::generic_category().message(errno));
    done += static_cast<std::size_t>(written);
  }
}

}  // namespace hayloft::runtime::eval
