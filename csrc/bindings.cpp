// The only file that knows pybind11: converts Python arguments and nothing else. Contracts: metasd_kernels/_C.pyi.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "suffix_automaton.h"

namespace py = pybind11;

namespace {

using metasd::SuffixAutomaton;

// Longer appends let other Python threads run; for shorter ones the hand-over costs more than it frees.
constexpr std::size_t kReleaseGilAbove = 512;

// Negative ids pass: the core names them. Only what int32 cannot hold has to be caught here.
std::int32_t to_token(long long value, std::size_t index) {
    constexpr long long kMax = std::numeric_limits<std::int32_t>::max();
    if (value > kMax || value < -kMax) {
        throw py::value_error("tokens must be in [0, 2**31), got " + std::to_string(value) + " at index " +
                              std::to_string(index));
    }
    return static_cast<std::int32_t>(value);
}

template <typename Integer>
std::vector<std::int32_t> copy_strided(const py::buffer_info& info) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(info.shape[0]));
    const char* element = static_cast<const char*>(info.ptr);
    for (std::size_t i = 0; i < tokens.size(); ++i, element += info.strides[0]) {
        tokens[i] = to_token(*reinterpret_cast<const Integer*>(element), i);
    }
    return tokens;
}

std::vector<std::int32_t> from_buffer(const py::buffer& buffer) {
    const py::buffer_info info = buffer.request();
    if (info.ndim != 1) {
        throw py::value_error("tokens must be one-dimensional, got " + std::to_string(info.ndim) +
                              " dimensions; append one sequence at a time");
    }
    if (info.item_type_is_equivalent_to<std::int32_t>()) return copy_strided<std::int32_t>(info);
    if (info.item_type_is_equivalent_to<std::int64_t>()) return copy_strided<std::int64_t>(info);
    throw py::type_error("tokens must hold int32 or int64, got buffer format '" + info.format +
                         "'; convert with tokens.astype('int32')");
}

std::vector<std::int32_t> from_sequence(const py::object& tokens) {
    const auto items = py::reinterpret_steal<py::object>(
        PySequence_Fast(tokens.ptr(), "tokens must be a sequence of ints, or an int32 or int64 array"));
    if (!items) throw py::error_already_set();
    std::vector<std::int32_t> result;
    result.reserve(static_cast<std::size_t>(PySequence_Fast_GET_SIZE(items.ptr())));
    // The size is read anew each time: an item's __index__ is Python code and may change the list.
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.ptr()); ++i) {
        const auto item = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(items.ptr(), i));
        const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(item.ptr()));
        if (!number) throw py::error_already_set();
        int overflow = 0;
        const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
        if (overflow != 0) {
            throw py::value_error("tokens must be in [0, 2**31), got " + std::string(py::str(number)) + " at index " +
                                  std::to_string(i));
        }
        result.push_back(to_token(value, static_cast<std::size_t>(i)));
    }
    return result;
}

void extend(SuffixAutomaton& automaton, const py::object& object) {
    const bool is_buffer = PyObject_CheckBuffer(object.ptr()) != 0;
    const std::vector<std::int32_t> tokens =
        is_buffer ? from_buffer(py::reinterpret_borrow<py::buffer>(object)) : from_sequence(object);
    if (tokens.size() > kReleaseGilAbove) {
        py::gil_scoped_release release;
        automaton.extend(tokens);
    } else {
        automaton.extend(tokens);
    }
}

py::tuple draft(const SuffixAutomaton& automaton, std::int32_t max_tokens, std::int32_t min_match) {
    const metasd::SuffixDraft result = automaton.draft(max_tokens, min_match);
    return py::make_tuple(result.token_ids, result.probabilities, result.match_length);
}

}  // namespace

PYBIND11_MODULE(_C, module) {
    module.doc() = "Native parts of metasd_kernels; typed and described in _C.pyi.";

    py::class_<SuffixAutomaton>(module, "SuffixAutomaton")
        .def(py::init<>())
        .def("extend", &extend, py::arg("tokens"))
        .def("match_length", &SuffixAutomaton::match_length)
        .def("draft", &draft, py::arg("max_tokens"), py::arg("min_match") = 1)
        .def("continuations", &SuffixAutomaton::continuations, py::arg("max_context"))
        .def("size", &SuffixAutomaton::size)
        .def("num_states", &SuffixAutomaton::num_states)
        .def("memory_bytes", &SuffixAutomaton::memory_bytes)
        .def("clear", &SuffixAutomaton::clear);
}
