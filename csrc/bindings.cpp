// The only file that knows pybind11: converts Python arguments and nothing else. Contracts: metasd_kernels/_C.pyi.
#include <pybind11/pybind11.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kv_swap.h"
#include "ngram_table.h"
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

// A table over arrays of Python's, which it keeps alive.
class BoundNgramTable {
  public:
    explicit BoundNgramTable(const py::sequence& levels) : table_(views(levels)), owner_(levels) {}

    using Ids = py::array_t<std::int64_t, py::array::c_style>;
    using Logits = py::array_t<float, py::array::c_style>;

    std::pair<std::int32_t, std::int32_t> law(const std::vector<std::int32_t>& context, Ids& ids, Logits& logits) const {
        if (ids.ndim() != 1 || logits.ndim() != 1 || ids.size() != logits.size()) {
            throw py::value_error("ids and logits: expected one dimension and the same length");
        }
        const auto size = static_cast<std::size_t>(ids.size());
        const metasd::NgramLaw law = table_.law(context, {ids.mutable_data(), size}, {logits.mutable_data(), size});
        return {law.num_listed, law.match_length};
    }

    std::vector<std::int32_t> laws(std::vector<std::int32_t> context, const std::vector<std::int32_t>& token_ids, Ids& ids,
                                   Logits& logits) const {
        const auto count = static_cast<py::ssize_t>(token_ids.size());
        const auto fits = [&](const py::array& rows) { return rows.ndim() == 2 && rows.shape(0) == count; };
        if (!fits(ids) || !fits(logits) || logits.size() != ids.size()) {
            throw py::value_error("ids and logits: expected a row for each token, and the same shape");
        }
        const auto size = static_cast<std::size_t>(ids.size());
        return table_.laws(std::move(context), token_ids, {ids.mutable_data(), size}, {logits.mutable_data(), size});
    }

    std::int32_t max_context() const { return table_.max_context(); }

  private:
    template <typename Value>
    static std::span<const Value> view(const py::handle& object) {
        if (!py::isinstance<py::array_t<Value, py::array::c_style>>(object)) {
            throw py::value_error("levels: expected contiguous arrays: uint32 keys and starts, int32 ids, uint16 counts");
        }
        const auto array = py::reinterpret_borrow<py::array_t<Value, py::array::c_style>>(object);
        if (array.ndim() != 1) throw py::value_error("levels: expected arrays of one dimension");
        return {array.data(), static_cast<std::size_t>(array.size())};
    }

    static std::vector<metasd::NgramLevel> views(const py::sequence& levels) {
        std::vector<metasd::NgramLevel> found;
        for (const py::handle level : levels) {
            const auto parts = py::cast<py::tuple>(level);
            if (parts.size() != 4) throw py::value_error("levels: expected (keys, starts, ids, counts) for each");
            found.push_back({view<std::uint32_t>(parts[0]), view<std::uint32_t>(parts[1]), view<std::int32_t>(parts[2]),
                             view<std::uint16_t>(parts[3])});
        }
        return found;
    }

    metasd::NgramTable table_;
    py::object owner_;
};

// What the ops need to know of torch. Looked up once: a small verification takes two microseconds in all.
struct Torch {
    py::object bfloat16, float16, float32, int64;
    py::object data_ptr, dtype, shape, stride, is_contiguous;

    static const Torch& get() {
        static const Torch& known = *new Torch;  // outlives the interpreter
        return known;
    }

  private:
    Torch() {
        const py::module_ torch = py::module_::import("torch");
        bfloat16 = torch.attr("bfloat16");
        float16 = torch.attr("float16");
        float32 = torch.attr("float32");
        int64 = torch.attr("int64");
        const auto name = [](const char* text) { return py::reinterpret_steal<py::object>(PyUnicode_InternFromString(text)); };
        data_ptr = name("data_ptr");
        dtype = name("dtype");
        shape = name("shape");
        stride = name("stride");
        is_contiguous = name("is_contiguous");
    }
};

py::object owned(PyObject* result) {
    if (result == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(result);
}

py::object attribute(py::handle object, const py::object& name) { return owned(PyObject_GetAttr(object.ptr(), name.ptr())); }

py::object call(py::handle object, const py::object& name) {
    return owned(PyObject_CallMethodNoArgs(object.ptr(), name.ptr()));
}

std::int64_t to_integer(py::handle value) {
    const std::int64_t result = PyLong_AsLongLong(value.ptr());
    if (result == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return result;
}

template <typename T>
T* address(py::handle tensor) {
    return reinterpret_cast<T*>(static_cast<std::uintptr_t>(to_integer(call(tensor, Torch::get().data_ptr))));
}

// The fields of an input tuple (metasd_kernels/inputs.py), one after the other. Shapes and devices were checked; copies
// in another dtype live as long as this.
class Inputs {
  public:
    Inputs(const py::tuple& fields, std::size_t count) : fields_(fields) {
        if (fields.size() == count) return;
        throw py::type_error("expected " + std::to_string(count) + " inputs, got " + std::to_string(fields.size()));
    }

    py::handle next() { return PyTuple_GET_ITEM(fields_.ptr(), at_++); }
    std::int64_t integer() { return to_integer(next()); }
    bool truth() { return PyObject_IsTrue(next().ptr()) == 1; }
    bool is(const char* text) { return PyUnicode_CompareWithASCIIString(next().ptr(), text) == 0; }
    const std::int64_t* integers() { return values<std::int64_t>(next(), Torch::get().int64); }
    const float* floats() { return values<float>(next(), Torch::get().float32); }

    metasd::PerRequest<std::int64_t> integer_rows(std::int64_t num_rows) {
        const auto [value, rows] = per_row();
        return {to_integer(value), values<std::int64_t>(rows, Torch::get().int64, num_rows)};
    }

    metasd::PerRequest<float> float_rows(std::int64_t num_rows) {
        const auto [value, rows] = per_row();
        const auto number = static_cast<float>(PyFloat_AsDouble(value.ptr()));
        if (PyErr_Occurred() != nullptr) throw py::error_already_set();
        return {number, values<float>(rows, Torch::get().float32, num_rows)};
    }

    // Requests and rows may lie anywhere, an id lies next to the one before.
    metasd::Logits logits() {
        const py::handle tensor = next();
        if (tensor.is_none()) return {};
        const Torch& torch = Torch::get();
        const py::object dtype = attribute(tensor, torch.dtype), shape = attribute(tensor, torch.shape);
        const py::object strides = call(tensor, torch.stride);
        const Py_ssize_t rank = PyTuple_GET_SIZE(strides.ptr());
        metasd::Logits given;
        given.data = address<const void>(tensor);
        given.dtype = dtype.is(torch.float32)    ? metasd::DType::kFloat32
                      : dtype.is(torch.bfloat16) ? metasd::DType::kBFloat16
                                                 : metasd::DType::kFloat16;
        given.vocab_size = to_integer(PyTuple_GET_ITEM(shape.ptr(), rank - 1));
        given.stride_request = to_integer(PyTuple_GET_ITEM(strides.ptr(), 0));
        given.stride_row = to_integer(PyTuple_GET_ITEM(strides.ptr(), rank - 2));
        return given;
    }

  private:
    std::pair<py::handle, py::handle> per_row() {
        const py::handle pair = next();
        if (!PyTuple_Check(pair.ptr()) || PyTuple_GET_SIZE(pair.ptr()) != 2) throw py::type_error("expected a PerRow");
        return {PyTuple_GET_ITEM(pair.ptr(), 0), PyTuple_GET_ITEM(pair.ptr(), 1)};
    }

    // Null for None. With `num_rows`, a tensor [1] stands for that many values.
    template <typename T>
    const T* values(py::handle given, const py::object& dtype, std::int64_t num_rows = -1) {
        if (given.is_none()) return nullptr;
        const Torch& torch = Torch::get();
        py::object tensor = py::reinterpret_borrow<py::object>(given);
        if (num_rows >= 0 && to_integer(PyTuple_GET_ITEM(attribute(tensor, torch.shape).ptr(), 0)) != num_rows) {
            tensor = tensor.attr("expand")(num_rows);
        }
        if (!attribute(tensor, torch.dtype).is(dtype) || !call(tensor, torch.is_contiguous).is(py::handle(Py_True))) {
            tensor = tensor.attr("to")(dtype).attr("contiguous")();
        }
        if (tensor.ptr() != given.ptr()) kept_.push_back(tensor);
        return address<const T>(tensor);
    }

    const py::tuple& fields_;
    Py_ssize_t at_ = 0;
    std::vector<py::object> kept_;
};

const metasd::TileKernels& kernels_of(const char* name) {
    if (*name == '\0') return metasd::tile_kernels();
    const metasd::TileKernels* kernels = metasd::tile_kernels_named(name);
    if (kernels == nullptr) throw py::value_error("instruction set " + std::string(name) + " is not available here");
    return *kernels;
}

void verify(const py::tuple& inputs, const py::tuple& out, std::int32_t num_threads, const char* instruction_set) {
    Inputs given(inputs, 20);
    if (out.size() != 7) throw py::type_error("expected 7 outputs, got " + std::to_string(out.size()));
    metasd::VerifyArguments a;
    a.batch_size = given.integer();
    a.num_positions = given.integer();
    a.target = given.logits();
    a.draft_token_ids = given.integers();
    a.draft = given.logits();
    a.temperature = given.float_rows(a.batch_size);
    a.draft_temperature = given.float_rows(a.batch_size);
    a.target_cutoff = given.floats();
    a.draft_cutoff = given.floats();
    a.num_draft_tokens = given.integers();
    a.cumulative = given.integers();
    const py::handle map = PyTuple_GET_ITEM(inputs.ptr(), 11);
    a.is_map_sparse = !map.is_none() && py::len(map.attr("shape")) > 1;
    a.draft_to_target = given.integers();
    a.reward_length = given.floats();
    a.is_block_rule = given.is("block");
    a.seed = given.integer_rows(a.batch_size);
    a.offset = given.integer_rows(a.batch_size);
    a.uniform_samples = given.floats();
    a.compute_tv = given.truth();
    const auto field = [&](Py_ssize_t index) { return py::handle(PyTuple_GET_ITEM(out.ptr(), index)); };
    const metasd::VerifyResults r{address<std::int64_t>(field(0)), address<std::int32_t>(field(1)),
                                  address<float>(field(2)),        address<float>(field(3)),
                                  address<float>(field(4)),        address<float>(field(5)),
                                  address<std::int32_t>(field(6))};
    const metasd::TileKernels& kernels = kernels_of(instruction_set);
    const py::gil_scoped_release release;
    metasd::verify_cpu(a, r, num_threads, kernels);
}

void sample(const py::tuple& inputs, const py::object& out, std::int32_t num_threads, const char* instruction_set) {
    Inputs given(inputs, 7);
    metasd::SampleArguments a;
    a.batch_size = py::len(out);
    a.logits = given.logits();
    a.temperature = given.float_rows(a.batch_size);
    a.cutoff = given.floats();
    a.seed = given.integer_rows(a.batch_size);
    a.offset = given.integer_rows(a.batch_size);
    a.position = given.integer_rows(a.batch_size);
    a.uniform_samples = given.floats();
    auto* token_ids = address<std::int64_t>(out);
    const metasd::TileKernels& kernels = kernels_of(instruction_set);
    const py::gil_scoped_release release;
    metasd::sample_cpu(a, token_ids, num_threads, kernels);
}

void logit_cutoff(const py::tuple& inputs, const py::object& out, std::int32_t num_threads,
                  const char* instruction_set) {
    Inputs given(inputs, 5);
    metasd::CutoffArguments a;
    a.num_rows = py::len(out);
    a.logits = given.logits();
    a.temperature = given.float_rows(a.num_rows);
    a.top_k = given.integer_rows(a.num_rows);
    a.top_p = given.float_rows(a.num_rows);
    a.min_p = given.float_rows(a.num_rows);
    auto* cutoff = address<float>(out);
    const metasd::TileKernels& kernels = kernels_of(instruction_set);
    const py::gil_scoped_release release;
    metasd::logit_cutoff_cpu(a, cutoff, num_threads, kernels);
}

// On checked tensors: slot [P, C, D], pages [N, P, S, D]; page_ids as an array. False where that takes a CUDA runtime and
// none is loaded.
bool copy_tokens(const py::object& slot, const py::object& pages,
                 const py::array_t<std::int64_t, py::array::c_style>& page_ids, std::int64_t begin, std::int64_t end,
                 bool is_parking, std::int32_t num_threads, std::optional<std::uintptr_t> stream) {
    const auto shape = py::cast<std::vector<std::int64_t>>(pages.attr("shape"));
    const auto item = py::cast<std::int64_t>(slot.attr("element_size")());
    const auto stride = py::cast<std::int64_t>(slot.attr("stride")(0));
    const metasd::KvPages kv{reinterpret_cast<std::byte*>(address<char>(slot)), shape[1], stride * item, shape[3] * item,
                             reinterpret_cast<std::byte*>(address<char>(pages)), shape[2],
                             {page_ids.data(), static_cast<std::size_t>(page_ids.size())}};
    const auto direction = is_parking ? metasd::Direction::kPark : metasd::Direction::kActivate;
    const py::gil_scoped_release release;
    if (stream) return metasd::copy_tokens_cuda(kv, begin, end, direction, reinterpret_cast<void*>(*stream));
    metasd::copy_tokens(kv, begin, end, direction, num_threads);
    return true;
}

}  // namespace

PYBIND11_MODULE(_C, module) {
    module.doc() = "Native parts of metasd_kernels; typed and described in _C.pyi.";

    module.def("verify", &verify);
    module.def("sample", &sample);
    module.def("logit_cutoff", &logit_cutoff);
    module.def("copy_tokens", &copy_tokens);
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

    py::class_<BoundNgramTable>(module, "NgramTable")
        .def(py::init<const py::sequence&>(), py::arg("levels"))
        .def("law", &BoundNgramTable::law, py::arg("context"), py::arg("ids").noconvert(), py::arg("logits").noconvert())
        .def("laws", &BoundNgramTable::laws, py::arg("context"), py::arg("token_ids"), py::arg("ids").noconvert(),
             py::arg("logits").noconvert())
        .def("max_context", &BoundNgramTable::max_context);
}
