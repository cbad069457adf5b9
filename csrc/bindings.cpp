// The only file that knows pybind11: converts Python arguments and nothing else. Contracts: metasd_kernels/_C.pyi.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "suffix_automaton.h"
#include "verify_cpu.h"

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

// Tensors come as addresses; 0 is no tensor. The Python side has checked shapes, dtypes and contiguity.
template <typename T>
T* pointer(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

using LogitsTuple = std::tuple<std::uintptr_t, std::int32_t, std::int64_t, std::int64_t, std::int64_t>;

metasd::Logits to_logits(const LogitsTuple& given) {
    const auto& [data, dtype, vocab_size, stride_request, stride_row] = given;
    return {pointer<const void>(data), static_cast<metasd::DType>(dtype), vocab_size, stride_request, stride_row};
}

template <typename T>
metasd::PerRequest<T> per_request(const std::pair<T, std::uintptr_t>& given) {
    return {given.first, pointer<const T>(given.second)};
}

const metasd::TileKernels& kernels_of(const std::string& name) {
    if (name.empty()) return metasd::tile_kernels();
    const metasd::TileKernels* kernels = metasd::tile_kernels_named(name.c_str());
    if (kernels == nullptr) throw py::value_error("instruction set " + name + " is not available here");
    return *kernels;
}

using FloatRows = std::pair<float, std::uintptr_t>;
using IntRows = std::pair<std::int64_t, std::uintptr_t>;

void verify(std::int64_t batch_size, std::int64_t num_positions, const LogitsTuple& target, const LogitsTuple& draft,
            std::uintptr_t draft_token_ids, const FloatRows& temperature, const FloatRows& draft_temperature,
            std::uintptr_t target_cutoff, std::uintptr_t draft_cutoff, std::uintptr_t num_draft_tokens,
            std::uintptr_t cumulative, std::uintptr_t draft_to_target, bool is_map_sparse,
            std::uintptr_t reward_length, bool is_block_rule, const IntRows& seed, const IntRows& offset,
            std::uintptr_t uniform_samples, bool compute_tv, const std::array<std::uintptr_t, 7>& out,
            std::int32_t num_threads, const std::string& instruction_set) {
    metasd::VerifyArguments a;
    a.batch_size = batch_size;
    a.num_positions = num_positions;
    a.target = to_logits(target);
    a.draft = to_logits(draft);
    a.draft_token_ids = pointer<const std::int64_t>(draft_token_ids);
    a.temperature = per_request(temperature);
    a.draft_temperature = per_request(draft_temperature);
    a.target_cutoff = pointer<const float>(target_cutoff);
    a.draft_cutoff = pointer<const float>(draft_cutoff);
    a.num_draft_tokens = pointer<const std::int64_t>(num_draft_tokens);
    a.cumulative = pointer<const std::int64_t>(cumulative);
    a.draft_to_target = pointer<const std::int64_t>(draft_to_target);
    a.is_map_sparse = is_map_sparse;
    a.reward_length = pointer<const float>(reward_length);
    a.is_block_rule = is_block_rule;
    a.seed = per_request(seed);
    a.offset = per_request(offset);
    a.uniform_samples = pointer<const float>(uniform_samples);
    a.compute_tv = compute_tv;
    const metasd::VerifyResults r{pointer<std::int64_t>(out[0]), pointer<std::int32_t>(out[1]), pointer<float>(out[2]),
                                  pointer<float>(out[3]),        pointer<float>(out[4]),        pointer<float>(out[5]),
                                  pointer<std::int32_t>(out[6])};
    const metasd::TileKernels& kernels = kernels_of(instruction_set);
    py::gil_scoped_release release;
    metasd::verify_cpu(a, r, num_threads, kernels);
}

void sample(std::int64_t batch_size, const LogitsTuple& logits, const FloatRows& temperature, std::uintptr_t cutoff,
            const IntRows& seed, const IntRows& offset, std::uint32_t position, std::uintptr_t uniform_samples,
            std::uintptr_t out, std::int32_t num_threads, const std::string& instruction_set) {
    metasd::SampleArguments a;
    a.batch_size = batch_size;
    a.logits = to_logits(logits);
    a.temperature = per_request(temperature);
    a.cutoff = pointer<const float>(cutoff);
    a.seed = per_request(seed);
    a.offset = per_request(offset);
    a.position = position;
    a.uniform_samples = pointer<const float>(uniform_samples);
    const metasd::TileKernels& kernels = kernels_of(instruction_set);
    py::gil_scoped_release release;
    metasd::sample_cpu(a, pointer<std::int64_t>(out), num_threads, kernels);
}

void logit_cutoff(std::int64_t num_rows, const LogitsTuple& logits, const FloatRows& temperature, const IntRows& top_k,
                  const FloatRows& top_p, const FloatRows& min_p, std::uintptr_t out, std::int32_t num_threads,
                  const std::string& instruction_set) {
    metasd::CutoffArguments a;
    a.num_rows = num_rows;
    a.logits = to_logits(logits);
    a.temperature = per_request(temperature);
    a.top_k = per_request(top_k);
    a.top_p = per_request(top_p);
    a.min_p = per_request(min_p);
    const metasd::TileKernels& kernels = kernels_of(instruction_set);
    py::gil_scoped_release release;
    metasd::logit_cutoff_cpu(a, pointer<float>(out), num_threads, kernels);
}

}  // namespace

PYBIND11_MODULE(_C, module) {
    module.doc() = "Native parts of metasd_kernels; typed and described in _C.pyi.";

    module.def("verify", &verify);
    module.def("sample", &sample);
    module.def("logit_cutoff", &logit_cutoff);
    module.def("instruction_set", [] { return std::string(metasd::tile_kernels().name); });

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
