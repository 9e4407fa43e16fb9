#pragma once

#include <string>

namespace hayloft::simt::ptx {

struct KernelText {
  std::string body;      // begins on line 12
  std::string shared{};  // .shared directives
};

// A PTX file with one kernel named "kernel", which takes an address, `data`, and has registers %p0 to %p7, %rs0 to
// %rs7, %r0 to %r15, %rd0 to %rd15, %f0 to %f7 and %fd0 to %fd7.
inline std::string kernel_text(const KernelText& text) {
  return ".version 9.0\n.target sm_89\n.address_size 64\n.entry kernel(.param .u64 data) {\n"
         ".reg .pred %p<8>;\n.reg .b16 %rs<8>;\n.reg .b32 %r<16>;\n.reg .b64 %rd<16>;\n.reg .f32 %f<8>;\n"
         ".reg .f64 %fd<8>;\n" +
         text.shared + "\n" + text.body + "\nret;\n}\n";
}

}  // namespace hayloft::simt::ptx
