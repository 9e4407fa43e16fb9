#include "tests/simt/device/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace hayloft::simt {
namespace {

constexpr std::string_view mark = "B11simt_shared";  // that __shared__ leaves (simt/kernel.h)

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : name;
}

// Variable x of function _ZF is mangled as _ZZFE1x, with its mark and perhaps a number behind it.
std::string declaring_function(std::string_view variable) {
  std::size_t end = variable.rfind(mark);
  while (end > 0 && std::isdigit(static_cast<unsigned char>(variable[end - 1])) == 0) --end;  // of the length of x
  while (end > 0 && std::isdigit(static_cast<unsigned char>(variable[end - 1])) != 0) --end;
  return end < 4 ? std::string() : "_Z" + std::string(variable.substr(3, end - 4));
}

// Kernels and their variables have internal linkage, which dladdr() does not see: the program's file is read instead.
struct Table {
  std::unordered_map<std::uintptr_t, std::string> functions;
  std::vector<SharedVariable> shared;

  Table() {
    std::uintptr_t base = 0;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* out) {
          *static_cast<std::uintptr_t*>(out) = info->dlpi_addr;
          return 1;  // the program comes first
        },
        &base);
    std::ifstream file("/proc/self/exe", std::ios::binary);
    const auto read = [&]<class T>(std::uint64_t offset, std::uint64_t bytes) {
      std::vector<T> elements(bytes / sizeof(T));
      file.seekg(static_cast<std::streamoff>(offset));
      file.read(reinterpret_cast<char*>(elements.data()), static_cast<std::streamsize>(elements.size() * sizeof(T)));
      return elements;
    };
    const auto header = read.operator()<Elf64_Ehdr>(0, sizeof(Elf64_Ehdr));
    if (!file) return;
    const auto sections = read.operator()<Elf64_Shdr>(header[0].e_shoff, header[0].e_shnum * sizeof(Elf64_Shdr));
    for (const Elf64_Shdr& section : sections) {
      if (section.sh_type != SHT_SYMTAB) continue;
      const Elf64_Shdr& strings = sections.at(section.sh_link);
      auto names = read.operator()<char>(strings.sh_offset, strings.sh_size);
      names.push_back('\0');
      for (const Elf64_Sym& symbol : read.operator()<Elf64_Sym>(section.sh_offset, section.sh_size)) {
        add(symbol, &names.at(symbol.st_name), base + symbol.st_value);
      }
    }
    std::unordered_set<std::string_view> known;
    for (const auto& [address, name] : functions) known.insert(name);
    for (SharedVariable& variable : shared) {
      if (known.count(variable.function) == 0) variable.function.clear();
    }
  }

  void add(const Elf64_Sym& symbol, const char* name, std::uintptr_t address) {
    if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC) functions.emplace(address, name);
    // GCC guards no variable that several objects may define.
    if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT && std::string_view(name).ends_with(mark)) {
      shared.push_back({reinterpret_cast<std::byte*>(address), symbol.st_size, demangled(name),
                        ELF64_ST_BIND(symbol.st_info) == STB_LOCAL, declaring_function(name)});
    }
  }
};

const Table& table() {
  static const Table table;
  return table;
}

}  // namespace

std::string function_name(const void* function) {
  const auto found = table().functions.find(reinterpret_cast<std::uintptr_t>(function));
  return found == table().functions.end() ? fmt::format("{}", function) : demangled(found->second);
}

const std::vector<SharedVariable>& shared_variables() {
  return table().shared;
}

const std::vector<SharedVariable>& shared_variables(const void* kernel) {
  static std::unordered_map<const void*, std::vector<SharedVariable>> known;
  const auto [at, fresh] = known.try_emplace(kernel);
  if (!fresh) return at->second;
  const auto function = table().functions.find(reinterpret_cast<std::uintptr_t>(kernel));
  for (const SharedVariable& variable : table().shared) {
    const bool own = function == table().functions.end() || variable.function == function->second;
    if (own || variable.function.empty()) at->second.push_back(variable);
  }
  return at->second;
}

}  // namespace hayloft::simt
