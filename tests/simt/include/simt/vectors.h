#pragma once

// CUDA's small vector types, as plain C++ and with CUDA's alignment.
#define HAYLOFT_SIMT_VECTORS(name, type, align2, align4)          \
  struct name##1 {                                                \
    type x;                                                       \
  };                                                              \
  struct alignas(align2) name##2 {                                \
    type x, y;                                                    \
  };                                                              \
  struct name##3 {                                                \
    type x, y, z;                                                 \
  };                                                              \
  struct alignas(align4) name##4 {                                \
    type x, y, z, w;                                              \
  };                                                              \
  inline name##2 make_##name##2(type x, type y) {                 \
    return {x, y};                                                \
  }                                                               \
  inline name##3 make_##name##3(type x, type y, type z) {         \
    return {x, y, z};                                             \
  }                                                               \
  inline name##4 make_##name##4(type x, type y, type z, type w) { \
    return {x, y, z, w};                                          \
  }

HAYLOFT_SIMT_VECTORS(char, signed char, 2, 4)
HAYLOFT_SIMT_VECTORS(uchar, unsigned char, 2, 4)
HAYLOFT_SIMT_VECTORS(short, short, 4, 8)
HAYLOFT_SIMT_VECTORS(ushort, unsigned short, 4, 8)
HAYLOFT_SIMT_VECTORS(int, int, 8, 16)
HAYLOFT_SIMT_VECTORS(uint, unsigned, 8, 16)
HAYLOFT_SIMT_VECTORS(longlong, long long, 16, 16)
HAYLOFT_SIMT_VECTORS(ulonglong, unsigned long long, 16, 16)
HAYLOFT_SIMT_VECTORS(float, float, 8, 16)
HAYLOFT_SIMT_VECTORS(double, double, 16, 16)
#undef HAYLOFT_SIMT_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
