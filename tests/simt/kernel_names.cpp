#include "tests/simt/kernel_names.h"

#include <cxxabi.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <unordered_map>
#include <vector>

namespace hayloft::simt {
namespace {

// Kernels have internal linkage, which dladdr() does not see: the program's file is read instead.
std::unordered_map<std::uintptr_t, std::string> read_functions() {
  std::uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        *static_cast<std::uintptr_t*>(out) = info->dlpi_addr;
        return 1;  // the program comes first
      },
      &base);
  std::unordered_map<std::uintptr_t, std::string> functions;
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const auto read = [&](std::uint64_t offset, auto& elements) {
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(reinterpret_cast<char*>(elements.data()),
              static_cast<std::streamsize>(elements.size() * sizeof elements[0]));
  };
  std::vector<Elf64_Ehdr> header(1);
  read(0, header);
  if (!file) return functions;
  std::vector<Elf64_Shdr> sections(header[0].e_shnum);
  read(header[0].e_shoff, sections);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    std::vector<Elf64_Sym> symbols(section.sh_size / sizeof(Elf64_Sym));
    read(section.sh_offset, symbols);
    std::vector<char> names(sections[section.sh_link].sh_size + 1);
    names.pop_back();
    read(sections[section.sh_link].sh_offset, names);
    names.push_back('\0');
    for (const Elf64_Sym& symbol : symbols) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_name >= names.size()) continue;
      functions.emplace(base + symbol.st_value, names.data() + symbol.st_name);
    }
  }
  return functions;
}

}  // namespace

std::string kernel_name(const void* function) {
  static const auto functions = read_functions();
  const auto found = functions.find(reinterpret_cast<std::uintptr_t>(function));
  if (found == functions.end()) return fmt::format("kernel at {}", function);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(found->second.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : found->second;
}

}  // namespace hayloft::simt
