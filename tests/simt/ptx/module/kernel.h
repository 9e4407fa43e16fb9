#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/simt/ptx/opcodes/opcodes.h"

// A kernel ready to run. Registers are named by their offset in the register file of a warp, where each holds 32 lanes
// of 2, 4 or 8 bytes one after another, and a predicate 32 bits. Immediates and special registers are registers that
// nothing writes.
namespace hayloft::simt::ptx {

inline constexpr unsigned kMostOperands = 11;

struct Register {
  unsigned offset = 0;
  unsigned bytes = 0;  // of a lane; 0: a predicate
};

struct Operands {
  std::array<Register, kMostOperands> of;
  unsigned count = 0;

  const Register& operator[](unsigned i) const { return of[i]; }
};

struct Instruction {
  const Opcode* opcode = nullptr;
  bool guarded = false;
  bool negated = false;  // the guard
  unsigned guard = 0;    // offset of the predicate
  Operands to{};
  Operands from{};
  Register base{};          // of the address, for loads, stores and atomics
  std::int64_t offset = 0;  // added to it
  unsigned target = 0;      // of a branch: index of an instruction
  int line = 0;             // of the PTX file
  int source_file = 0;      // as in .file, with source_line the place that .loc names; 0: none
  int source_line = 0;
};

struct Parameter {
  std::string name;
  std::size_t bytes = 0;
  std::size_t offset = 0;  // in the parameter space
};

struct Constant {
  Register where;
  std::uint64_t bits = 0;  // of each lane; for a predicate, other than 0: all bits set
};

enum class Special : std::uint8_t {
  tid_x,
  tid_y,
  tid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  dynamic_shared,  // address of the dynamic shared memory, behind the static
};

struct SpecialRegister {
  Special what = Special::tid_x;
  Register where;
};

struct Kernel {
  std::string name;  // demangled
  std::vector<Parameter> parameters;
  std::size_t parameter_bytes = 0;
  unsigned most_threads = 1024;  // of a block; .maxntid where the kernel has one
  std::size_t static_shared_bytes = 0;
  std::vector<Instruction> code;  // ends with an exit
  std::size_t register_bytes = 0;
  std::vector<Constant> constants;
  std::vector<SpecialRegister> specials;
};

}  // namespace hayloft::simt::ptx
