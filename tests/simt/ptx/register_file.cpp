#include "tests/simt/ptx/register_file.h"

namespace hayloft::simt::ptx {

Register RegisterFile::allocate(unsigned bytes) {
  constexpr std::size_t alignment = 32;
  std::size_t& end = kernel_.register_bytes;
  if (bytes > 0) end = (end + alignment - 1) / alignment * alignment;
  const Register made{static_cast<unsigned>(end), bytes};
  end += bytes == 0 ? sizeof(Mask) : std::size_t{bytes} * kLanes;
  return made;
}

Register RegisterFile::reuse(unsigned bytes) {
  auto& free = free_[bytes];
  if (free.empty()) return allocate(bytes);
  const Register reused = free.back();
  free.pop_back();
  return reused;
}

void RegisterFile::close_scope() {
  for (const auto& [name, where] : scopes_.back()) free_[where.bytes].push_back(where);
  scopes_.pop_back();
}

void RegisterFile::declare(std::string_view name, Type type) {
  scopes_.back().insert_or_assign(std::string(name), reuse(bytes(type)));
}

const Register* RegisterFile::find(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto found = scope->find(name);
    if (found != scope->end()) return &found->second;
  }
  return nullptr;
}

Register RegisterFile::constant(std::uint64_t bits, unsigned bytes) {
  const auto [at, fresh] = constants_.try_emplace({bits, bytes});
  if (fresh) {
    at->second = allocate(bytes);
    kernel_.constants.push_back({at->second, bits});
  }
  return at->second;
}

Register RegisterFile::special(Special what, unsigned bytes) {
  const auto [at, fresh] = specials_.try_emplace({what, bytes});
  if (fresh) {
    at->second = allocate(bytes);
    kernel_.specials.push_back({what, at->second});
  }
  return at->second;
}

}  // namespace hayloft::simt::ptx
