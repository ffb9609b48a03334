// Everything from outside that the kernels use, included before any target pragma: an inline
// function of the standard library compiled for one instruction set could otherwise be the copy that
// all files get, and end a process on a machine that lacks it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "attention_plan.h"
#include "kernels.h"
#include "pages.h"

// TARGET("avx2,fma") ... END_TARGET: functions between are compiled for these instructions.
#define SGL_STRING(x) #x
#if defined(__clang__)
#define TARGET(isa) \
  _Pragma(SGL_STRING(clang attribute push(__attribute__((target(isa))), apply_to = function)))
#define END_TARGET _Pragma("clang attribute pop")
#else
#define TARGET(isa) _Pragma("GCC push_options") _Pragma(SGL_STRING(GCC target(isa)))
#define END_TARGET _Pragma("GCC pop_options")
#endif

// clang-format off
#define SGL_KERNELS(isa)                                                                      \
  {                                                                                           \
#isa, isa::packed_bytes, isa::pack, isa::pack_integers, isa::unpack, isa::scratch_bytes,      \
        isa::prepare, isa::multiply, isa::takes, isa::experts_bytes, isa::experts,           \
        isa::low_bytes, isa::shrink, isa::turn, isa::append, isa::attend_bytes, isa::attend,  \
        isa::norm, isa::gate, isa::activate, isa::log_sums, isa::draw_bytes, isa::draw        \
  }
// clang-format on
