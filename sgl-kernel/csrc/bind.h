// Python functions from C++ functions: arguments are numbers and addresses, converted by type; the
// interpreter lock is released while a kernel runs. Limited API (3.10), so one build serves all.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

namespace sgl {

template <class T>
bool convert(PyObject* from, T& to) {
  if constexpr (std::is_same_v<T, const char*>) {
    to = PyUnicode_AsUTF8AndSize(from, nullptr);
  } else if constexpr (std::is_pointer_v<T>) {
    if (from == Py_None) return to = nullptr, true;
    to = reinterpret_cast<T>(PyLong_AsVoidPtr(from));
  } else if constexpr (std::is_floating_point_v<T>) {
    to = static_cast<T>(PyFloat_AsDouble(from));
  } else if constexpr (std::is_same_v<T, bool>) {
    int truth = PyObject_IsTrue(from);
    to = truth > 0;
    return truth >= 0;
  } else {
    to = static_cast<T>(PyLong_AsLongLong(from));
  }
  return !PyErr_Occurred();
}

inline PyObject* result(int64_t value) { return PyLong_FromLongLong(value); }
inline PyObject* result(size_t value) { return PyLong_FromSize_t(value); }
inline PyObject* result(bool value) { return PyBool_FromLong(value); }
inline PyObject* result(double value) { return PyFloat_FromDouble(value); }
inline PyObject* result(const char* value) {
  if (!value) Py_RETURN_NONE;
  return PyUnicode_FromString(value);
}

template <auto function>
struct Bound;

template <class R, class... A, R (*function)(A...)>
struct Bound<function> {
  template <size_t... n>
  static PyObject* call(PyObject* const* args, std::index_sequence<n...>) {
    std::tuple<A...> values;
    if (!(convert(args[n], std::get<n>(values)) && ...)) return nullptr;
    // What containers throw; kernels throw nothing.
    bool full = false;
    auto* state = PyEval_SaveThread();
    if constexpr (std::is_void_v<R>) {
      try {
        function(std::get<n>(values)...);
      } catch (const std::bad_alloc&) {
        full = true;
      }
      PyEval_RestoreThread(state);
      if (full) return PyErr_NoMemory();
      Py_RETURN_NONE;
    } else {
      R value{};
      try {
        value = function(std::get<n>(values)...);
      } catch (const std::bad_alloc&) {
        full = true;
      }
      PyEval_RestoreThread(state);
      return full ? PyErr_NoMemory() : result(value);
    }
  }

  static PyObject* fast(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != static_cast<Py_ssize_t>(sizeof...(A)))
      return PyErr_Format(PyExc_TypeError, "%zd arguments given, %zu are needed", count,
                          sizeof...(A));
    return call(args, std::index_sequence_for<A...>{});
  }
};

template <auto function>
PyMethodDef method(const char* name) {
  auto* entry = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&Bound<function>::fast));
  return {name, entry, METH_FASTCALL, nullptr};
}

}  // namespace sgl
