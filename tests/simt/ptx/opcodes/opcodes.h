#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/simt/ptx/module/types.h"

namespace hayloft::simt::ptx {

class Warp;
struct Instruction;

// Says how an instruction is written, and who carries it out.
enum class Form : std::uint8_t {
  lanes,          // registers and immediates; every lane for itself
  load,           // to, [address]
  store,          // [address], from
  atomic,         // to, [address], from
  copy,           // [address], [source], bytes
  meeting,        // lanes of a warp wait for each other; the last operand is the mask of those that take part
  meeting_load,   // likewise: to, [address]
  branch,         // to a label
  exit,           // of the thread
  block_barrier,  // bar.sync: all threads of the block wait for each other
};

enum class Space : std::uint8_t { generic, param, global, shared };

// One opcode with all of its modifiers, as the assembler writes it.
struct Opcode {
  std::string name;
  Form form = Form::lanes;
  std::vector<Type> to{};    // of the destinations
  std::vector<Type> from{};  // of the sources, without the address
  Space space = Space::generic;
  bool any_width = false;        // registers may be wider than the types, as for ld, st and cvt
  bool second_optional = false;  // of two destinations, as for the predicate of shfl
  bool whole_warp = false;       // a meeting of all lanes, whose mask is not written

  // Carries it out for the lanes of the mask. Null for branches, exits and barriers of blocks.
  void (*run)(Warp& warp, const Instruction& instruction, Mask lanes) = nullptr;
};

using OpcodeTable = std::unordered_map<std::string_view, const Opcode*>;

// All that are known. "mov.b64" from and to lists in braces has entries of its own, "mov.b64 pack" and
// "mov.b64 unpack"; reading the clock is "mov.u64 %globaltimer".
const OpcodeTable& opcodes();

// The families.
void add_integer_opcodes(std::vector<Opcode>& to);
void add_bit_opcodes(std::vector<Opcode>& to);
void add_float_opcodes(std::vector<Opcode>& to);
void add_compare_opcodes(std::vector<Opcode>& to);
void add_convert_opcodes(std::vector<Opcode>& to);
void add_move_opcodes(std::vector<Opcode>& to);
void add_memory_opcodes(std::vector<Opcode>& to);
void add_warp_opcodes(std::vector<Opcode>& to);
void add_matrix_opcodes(std::vector<Opcode>& to);

}  // namespace hayloft::simt::ptx
